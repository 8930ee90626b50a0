//! The recorded results of the reference, all three values of truth and the errors told apart; and
//! what is no expression.

mod limits;
mod rules;

use super::grammar::parse;
use super::*;
use crate::error::Error;
use expression::Unfit;
use serde_json::Value;
use std::collections::BTreeMap;

type Properties<'a> = BTreeMap<&'a str, &'a str>;

fn truth(text: &str, properties: &[(&str, &str)]) -> Result<Option<bool>, Unfit> {
    evaluate(&compile(text), &properties.iter().copied().collect())
}

fn compile(text: &str) -> Expression {
    parse(text).0.unwrap_or_else(|fault| panic!("{fault:?}: {text}"))
}

fn evaluate<'a>(
    expression: &'a Expression,
    properties: &Properties<'a>,
) -> Result<Option<bool>, Unfit> {
    expression.truth(&|name| properties.get(name).copied())
}

#[track_caller]
fn refused(text: &str) -> String {
    match Sql::parse(text) {
        Err(error @ Error::Sql { .. }) => error.to_string(),
        other => panic!("{other:?}: {text}"),
    }
}

/// As in `tests/conformance.rs`, which sees only whether a message passes, and explains why what is
/// left out here is: what does not parse, on either side, is compared there.
#[test]
fn sql_2_sql_12_recorded_values() {
    const FILE: &str = include_str!("../../../../tests/vectors/sql92.json");
    let folder = std::env::var_os("ROCKLET_VECTORS").map(std::path::PathBuf::from);
    let other = folder.map(|folder| folder.join("sql92.json"));
    let text = other.map(|path| std::fs::read_to_string(path).expect("ROCKLET_VECTORS"));
    let cases: Vec<Value> = serde_json::from_str(text.as_deref().unwrap_or(FILE)).unwrap();
    let mut compared = 0;
    for case in cases.iter().filter(|case| case["parse"] == "ok") {
        let Ok(expression) = parse(case["expr"].as_str().unwrap()).0 else { continue };
        if case["trailing_input"] == true {
            continue;
        }
        for evaluated in case["evals"].as_array().unwrap() {
            let mut properties = Properties::new();
            let texts = evaluated[0].as_object().unwrap().iter().all(|(name, value)| {
                if let Some(value) = value.as_str() {
                    properties.insert(name, value);
                }
                // Present without a value is as good as missing; typed values there are none.
                value.is_string() || value.is_null()
            });
            if !texts {
                continue;
            }
            let expected = match evaluated[1].as_str().unwrap() {
                "TRUE" => Ok(Some(true)),
                "FALSE" => Ok(Some(false)),
                "NULL" => Ok(None),
                "ERROR" => Err(Unfit),
                other => panic!("{other}"),
            };
            assert_eq!(evaluate(&expression, &properties), expected, "{evaluated} {case}");
            compared += 1;
        }
    }
    println!("sql92.json: {compared} values compared");
    assert!(compared > 0);
}

#[test]
fn sql_1_words_comments_and_case() {
    for same in
        ["a=1 and b='x'", " A1 ", "a/**/= /* * / */1\nAND -- b\r b = 'x' --\n", "\ta\u{c}=\r\n1"]
    {
        compile(same);
    }
    assert_eq!(compile("a=1 And not(b Is Null)"), compile("a = 1 AND NOT (b IS NULL)"));
    assert_ne!(compile("a = 1"), compile("A = 1"), "properties have a case");
    assert_eq!(truth("$ = 'x' AND _ = 'y'", &[("$", "x"), ("_", "y")]), Ok(Some(true)));
    assert_eq!(
        truth("like LIKE 'x' AND escape = 'y'", &[("like", "x"), ("escape", "y")]),
        Ok(Some(true))
    );
    for bad in
        ["a = 1 --", "a = 1 -- b", "a = 1 /* b", "a = 1 /*/", "a.b = 1", "\u{e9} = 1", "1a = 1"]
    {
        refused(bad);
    }
}

#[test]
fn sql_3_what_is_behind_the_expression_is_an_error_with_its_place() {
    assert_eq!(
        refused("a = 1 b = 2"),
        "AND, OR, a comparison or the end is expected here (at byte 6):\n  a = 1 b = 2\n        ^"
    );
    assert_eq!(
        refused("name = 'J\u{fc}rgen'\n  AND\tcity = \"\u{4e2d}\" -- x\n"),
        "write texts in single quotes, and properties in none (at byte 30):\n    AND city = \"\u{4e2d}\" -- x\n               ^"
    );
    for (text, position, word) in [
        ("a == 1", 3, "write ="),
        ("a != 1", 2, "<>"),
        ("a = 1)", 5, "parenthesis"),
        ("(a = 1", 6, "`)`"),
        ("a + 1 = 2", 2, "arithmetic"),
        ("a * 2 = 2", 2, "arithmetic"),
        ("a = 007", 5, "end"),
        ("a = 'it's'", 8, "end"),
        ("a = 'it", 4, "quote"),
        ("", 0, "value"),
        ("a IN ('x', 3)", 11, "text"),
        ("a IN ()", 6, "text"),
        ("a IN ('x'", 9, "`)`"),
        ("a IS 1", 5, "NULL"),
        ("a NOT 1", 6, "BETWEEN"),
        ("a BETWEEN 1 OR 2", 12, "AND"),
        ("a BETWEEN 2 AND 1", 10, "above"),
        ("a = NULL", 4, "IS NULL"),
        ("x > 'b'", 4, "order"),
        ("a = 1 AND 'b'", 10, "condition"),
        ("'a'", 0, "condition"),
        ("TRUE = 1", 7, "conditions"),
        ("a LIKE 'a!b' ESCAPE '!'", 7, "escape"),
        ("a LIKE 'a' ESCAPE 'ab'", 18, "one character"),
        ("1 LIKE 'a'", 0, "property"),
    ] {
        let Err(Error::Sql { line, column, position: at, reason }) = Sql::parse(text) else {
            panic!("{text}")
        };
        assert_eq!((line.as_str(), column, at), (text, position, position), "{reason}");
        assert!(reason.contains(word), "{text}: {reason}");
    }
    // Of a long line the part around the fault is shown.
    let long = format!("{}= 1 AND", "a = 1 OR ".repeat(1000));
    let Err(Error::Sql { line, column, position, .. }) = Sql::parse(&long) else { panic!() };
    assert_eq!((line.len(), column, position), (60 + 7, 60, 9000));
}

#[test]
fn sql_2_not_before_a_comparison_is_refused_with_advice() {
    for text in [
        "NOT a = 1",
        "NOT a IS NULL",
        "b = 2 AND NOT a > 1",
        "NOT (a = 1) = TRUE",
        "NOT a IN ('x')",
        "NOT a NOT IN ('x')",
        "NOT a BETWEEN 1 AND 2",
        "not a LIKE 'x'",
        "NOT NOT a CONTAINS 'x'",
        "a = NOT b = c",
        "-NOT a <> 1",
    ] {
        assert!(refused(text).contains("write NOT ("), "{text}");
    }
    let one = [("a", "1")];
    assert_eq!(truth("NOT (a = 1)", &one), Ok(Some(false)));
    assert_eq!(truth("(NOT a) = 1", &one), Ok(Some(false)));
    assert_eq!(truth("(NOT a) IS NULL", &[]), Ok(Some(true)));
    assert_eq!(truth("TRUE = NOT b", &one), Ok(Some(false)));
    assert_eq!(truth("NOT NOT NOT a", &one), Ok(Some(true)));
    assert_eq!(truth("(NOT NOT a) = 1", &one), Ok(Some(false)), "a condition, not a property");
}

#[test]
fn sql_5_zero_and_the_smallest_number_are_literals() {
    for zero in ["0.0", "0.", ".0", "0e0", "-0.0", "0.00E7"] {
        assert_eq!(truth(&format!("a >= {zero}"), &[("a", "0")]), Ok(Some(true)), "{zero}");
    }
    let least = [("a", "-9223372036854775808")];
    for least_number in ["-9223372036854775808", "- 9223372036854775808L", "---9223372036854775808"]
    {
        assert_eq!(truth(&format!("a = {least_number}"), &least), Ok(Some(true)));
    }
    for bad in [
        "9223372036854775808",
        "-(9223372036854775808)",
        "-+9223372036854775808",
        "--9223372036854775808",
        "-9223372036854775809",
        "1e309",
        "1e-400",
        "2.4E-324",
    ] {
        refused(&format!("a = {bad}"));
    }
}

#[test]
fn like_is_there_and_knows_nothing_of_what_is_missing() {
    let city = [("city", "K\u{f6}ln_1")];
    for (text, expected) in [
        ("city LIKE 'K_ln%'", Some(true)),
        ("city LIKE 'k%'", Some(false)),
        ("city NOT LIKE 'k%'", Some(true)),
        ("city LIKE '%!_1' ESCAPE '!'", Some(true)),
        ("city LIKE '%!!%' ESCAPE '!'", Some(false)),
        ("town LIKE '%'", None),
        ("town NOT LIKE '%'", None),
        ("city LIKE '%''%'", Some(false)),
    ] {
        assert_eq!(truth(text, &city), Ok(expected), "{text}");
    }
}

#[test]
fn expressions_of_one_meaning_are_equal() {
    let same = ["a = 1 OR b IN ('x','y') OR c", "(a=1 or b in ('y', 'x', 'x')) OR ((c)) -- \n"];
    assert_eq!(Sql::parse(same[0]).unwrap(), Sql::parse(same[1]).unwrap());
    assert_ne!(compile("a = 1"), compile("a = 1.0"), "they read texts differently");
    assert_ne!(compile("a AND b"), compile("a OR b"));
}
