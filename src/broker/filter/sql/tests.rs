//! The recorded results of the reference, all three values of truth and the errors told apart.

use super::grammar::{LONGEST, parse};
use super::part::DEEPEST;
use super::*;
use crate::error::Error;
use expression::Unfit;
use serde_json::Value;
use std::cell::Cell;
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

/// Texts of `n` parts that are hard on a careless parser.
fn hard(n: usize) -> Vec<String> {
    vec![
        vec!["a = 1"; n].join(" OR "),
        vec!["a = 1 AND b = 2"; n].join(" OR "),
        format!("{}a = 1", "NOT ".repeat(n).replace("NOT NOT NOT NOT", "NOT  NOT\tNOT NOT(")),
        format!("{}(a = 1)", "NOT ".repeat(n)),
        format!("a = {}5", "-".repeat(n)),
        format!("a = {}5", "--".repeat(n)),
        format!("a = {}5\n", "--".repeat(n)),
        format!("a {}= 5", "--\n".repeat(n)),
        format!("a {}= 5", "/**/".repeat(n)),
        format!("a = 1 {}", "/*".repeat(n)),
        format!("a {}= 5", "/* ".repeat(n)),
        format!("{}a{} = 1", "(".repeat(n), ")".repeat(n)),
        "(".repeat(n),
        format!("a = '{}'", "''".repeat(n)),
        format!("a = '{}", "''".repeat(n)),
        format!("a = {}", "9".repeat(n)),
        format!("a = {}e", "9.9".repeat(n)),
        format!("{} = 1", "a".repeat(n)),
        format!("a IN ({})", vec!["'x'"; n].join(",")),
        format!("a LIKE '{}'", "%a_".repeat(n)),
        format!("a {}", "IS NULL ".repeat(n)),
        format!("a {}", "= b ".repeat(n)),
        format!("a {}", "CONTAINS 'x' ".repeat(n)),
        format!("{}a", "-(a BETWEEN 1 AND 2) BETWEEN -(".repeat(n)),
        format!("{}a = 1{}", "(a = 1 AND (b = 1 OR ".repeat(n), "))".repeat(n)),
        format!("a = 1 {}", "\u{1f680}".repeat(n)),
        format!("{}", "\u{feff}\u{0}\u{202e}".repeat(n)),
        "' ".repeat(n),
        "NOT(".repeat(n),
    ]
}

#[test]
fn b_154_work_grows_no_faster_than_the_text() {
    let works = |n| -> Vec<(usize, usize)> {
        let texts = hard(n);
        texts.iter().map(|text| (text.len(), parse(text).1)).collect()
    };
    let sizes = [1 << 8, 1 << 10, 1 << 12].map(works);
    for nth in 0..sizes[0].len() {
        // Every byte is looked at a few times, and at each of three sizes alike.
        for works in &sizes {
            let (length, work) = works[nth];
            assert!(work <= 16 * length, "{work} for {length} bytes of text {nth}");
        }
        println!("text {nth}: {:?}", sizes.each_ref().map(|works| works[nth]));
    }
    let most = sizes[2].iter().filter(|(length, work)| work >= length).count();
    assert!(most >= 12, "{most} of {} texts are read to their end", sizes[2].len());
}

#[test]
fn b_154_long_texts_and_deep_nesting_end_in_errors() {
    for text in hard(300_000) {
        assert!(refused(&text).contains("longer than 256 KiB"));
    }
    let widest = format!("{}a = 1", " ".repeat(LONGEST - 5));
    compile(&widest);
    refused(&format!(" {widest}"));
    // Parentheses alone are no matter, however many; operators in them are.
    compile(&format!("{}a = 1{}", "(".repeat(100_000), ")".repeat(100_000)));
    let chained = |n| format!("a {}", "IS NULL ".repeat(n));
    compile(&chained(DEEPEST));
    assert!(refused(&chained(DEEPEST + 1)).contains("deeper than 256"));
    let nested = |n| format!("{}a = 1{}", "a = 1 OR (b = 1 AND (".repeat(n), "))".repeat(n));
    assert!(refused(&nested(DEEPEST / 2)).contains("deeper than 256"));
    let deepest = nested(DEEPEST / 2 - 1);
    // On half of the stack that threads usually have, even without any optimisation.
    let evaluated = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let expression = compile(&deepest);
        evaluate(&expression, &Properties::from([("a", "2"), ("b", "1")]))
    });
    assert_eq!(evaluated.unwrap().join().unwrap(), Ok(Some(false)));
}

#[test]
fn b_154_evaluating_looks_at_each_property_once_where_it_is_named() {
    for n in [10, 100, 1000] {
        let expression = compile(&vec!["a = 'x'"; n].join(" OR "));
        let looked = Cell::new(0);
        let get = |_: &str| {
            looked.set(looked.get() + 1);
            Some("y")
        };
        assert_eq!(expression.truth(&get), Ok(Some(false)));
        assert_eq!(looked.get(), n);
    }
}

#[test]
fn b_154_values_and_types() {
    for (value, above_9, is_text, is_true, between) in [
        ("10", Ok(Some(true)), Ok(Some(true)), Ok(Some(false)), Ok(Some(true))),
        ("9", Ok(Some(false)), Ok(Some(false)), Ok(Some(false)), Ok(Some(true))),
        ("abc", Err(Unfit), Ok(Some(false)), Ok(Some(false)), Err(Unfit)),
        ("1e3", Err(Unfit), Ok(Some(false)), Ok(Some(false)), Err(Unfit)),
        ("", Err(Unfit), Ok(Some(false)), Ok(Some(false)), Err(Unfit)),
        ("true", Err(Unfit), Ok(Some(false)), Ok(Some(true)), Err(Unfit)),
    ] {
        let a = [("a", value)];
        assert_eq!(truth("a > 9", &a), above_9, "{value:?}");
        assert_eq!(truth("a = '10'", &a), is_text, "{value:?}");
        assert_eq!(truth("a = TRUE", &a), is_true, "{value:?}");
        assert_eq!(truth("a BETWEEN 9 AND 10", &a), between, "{value:?}");
    }
    assert_eq!(truth("a > 9.0", &[("a", "1e3")]), Ok(Some(true)));
}

#[test]
fn sql_10_a_missing_property_is_in_no_list_and_not_in_none() {
    assert_eq!(truth("a IN ('x')", &[]), Ok(None));
    assert_eq!(truth("a NOT IN ('x')", &[]), Ok(None));
    let list = (0..100).map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
    for n in [0, 50, 99, 100] {
        let expected = Ok(Some(n < 100));
        assert_eq!(truth(&format!("a IN ({list})"), &[("a", &n.to_string())]), expected);
    }
}

/// Expressions with the properties `a` = 5 and `t` = "x", and none else.
#[track_caller]
fn all_are(cases: &[(&str, Result<Option<bool>, Unfit>)]) {
    for (text, expected) in cases {
        assert_eq!(truth(text, &[("a", "5"), ("t", "x")]), *expected, "{text}");
    }
}

const YES: Result<Option<bool>, Unfit> = Ok(Some(true));
const NO: Result<Option<bool>, Unfit> = Ok(Some(false));
const UNKNOWN: Result<Option<bool>, Unfit> = Ok(None);

#[test]
fn sql_4_a_property_is_a_condition_that_is_never_true() {
    all_are(&[
        ("t", NO),
        ("none", UNKNOWN),
        ("NOT t", YES),
        ("TRUE", YES),
        ("NULL", UNKNOWN),
        ("t OR TRUE", YES),
    ]);
    for text in ["'x'", "5", "-a", "a AND 5", "NOT 'x'", "NOT -a"] {
        refused(text);
    }
}

#[test]
fn sql_6_equality_is_lopsided_where_something_is_missing() {
    all_are(&[
        ("none = a", UNKNOWN),
        ("a = none", NO),
        ("a <> none", YES),
        ("none <> a", UNKNOWN),
        ("none = nothing", YES),
        ("1 = TRUE", NO),
        ("1 = 1.0", YES),
        ("'x' = t", YES),
    ]);
    for text in ["a = NULL", "NULL <> a", "TRUE = 1", "FALSE = 'x'"] {
        refused(text);
    }
}

#[test]
fn sql_7_only_numbers_are_ordered() {
    all_are(&[
        ("a > none", UNKNOWN),
        ("none > t", UNKNOWN),
        ("a <= a", YES),
        ("a > t", Err(Unfit)),
        ("t < 5", Err(Unfit)),
        ("4 < a", YES),
    ]);
    for text in ["a > 'x'", "TRUE < a", "a >= NULL", "(a = 5) > 1"] {
        refused(text);
    }
}

#[test]
fn sql_8_a_text_is_read_as_what_it_is_compared_with() {
    all_are(&[
        ("a = 5", YES),
        ("a = 5.0", YES),
        ("a = '5.0'", NO),
        ("a = 5000000000", NO),
        ("t = 5", Err(Unfit)),
        ("t = TRUE", NO),
        ("t = FALSE", YES),
        ("TRUE = t", Err(Unfit)),
        ("(a = 5) = 1", NO),
    ]);
    assert_eq!(truth("a = 5", &[("a", "5.0")]), Err(Unfit));
    assert_eq!(truth("a = 5", &[("a", "5000000000")]), Err(Unfit));
    assert_eq!(truth("a = TRUE", &[("a", "tRuE")]), YES);
}

#[test]
fn sql_9_between_is_two_comparisons() {
    all_are(&[
        ("a BETWEEN 5 AND 5.5", YES),
        ("a NOT BETWEEN 6 AND 4", YES),
        ("a BETWEEN 6 AND none", NO),
        ("a BETWEEN 5 AND none", UNKNOWN),
        ("a BETWEEN 6 AND t", NO),
        ("a BETWEEN 5 AND t", Err(Unfit)),
        ("a NOT BETWEEN 6 AND t", YES),
        ("none BETWEEN t AND t", UNKNOWN),
        ("a BETWEEN 9 AND -9", NO),
        ("5 BETWEEN 4 AND a", YES),
    ]);
    for text in
        ["a BETWEEN 9 AND 1", "a BETWEEN NULL AND 1", "a BETWEEN 1 AND '5'", "a BETWEEN 2.5 AND 2"]
    {
        refused(text);
    }
}

#[test]
fn sql_11_whether_something_is_missing_is_always_known() {
    all_are(&[
        ("none IS NULL", YES),
        ("none IS NOT NULL", NO),
        ("a IS NOT NULL", YES),
        ("NULL IS NULL", YES),
        ("(none = 1) IS NULL", YES),
        ("a IS NULL IS NULL", NO),
        ("a = t IS NULL", NO),
    ]);
}

#[test]
fn sql_12_and_or_not_of_three_values_stop_at_what_decides() {
    for (left, right, and, or) in [
        ("TRUE", "TRUE", YES, YES),
        ("TRUE", "FALSE", NO, YES),
        ("TRUE", "NULL", UNKNOWN, YES),
        ("FALSE", "TRUE", NO, YES),
        ("FALSE", "NULL", NO, UNKNOWN),
        ("NULL", "TRUE", UNKNOWN, YES),
        ("NULL", "FALSE", NO, UNKNOWN),
        ("NULL", "NULL", UNKNOWN, UNKNOWN),
        ("FALSE", "t > 1", NO, Err(Unfit)),
        ("TRUE", "t > 1", Err(Unfit), YES),
        ("NULL", "t > 1", Err(Unfit), Err(Unfit)),
        ("t > 1", "TRUE", Err(Unfit), Err(Unfit)),
    ] {
        all_are(&[(&format!("{left} AND {right}"), and), (&format!("{left} OR {right}"), or)]);
    }
    all_are(&[("NOT NULL", UNKNOWN), ("NOT (t > 1)", Err(Unfit)), ("TRUE OR TRUE AND FALSE", YES)]);
}

#[test]
fn sql_13_a_sign_makes_nothing_of_what_is_no_number() {
    all_are(&[
        ("-a IS NULL", YES),
        ("- -a = 5", UNKNOWN),
        ("-TRUE IS NULL", YES),
        ("-'5' IS NULL", YES),
        ("- - -5 < a", YES),
        ("+a = +5", YES),
        ("-(a = 5) > 1", UNKNOWN),
        ("- t = t", UNKNOWN),
    ]);
}

#[test]
fn sql_14_what_is_not_there_is_neither_found_nor_not_found() {
    all_are(&[
        ("t CONTAINS 'x'", YES),
        ("t NOT CONTAINS 'x'", NO),
        ("t STARTSWITH 'y'", NO),
        ("t NOT ENDSWITH 'y'", YES),
        ("none CONTAINS 'x'", NO),
        ("none NOT CONTAINS 'x'", NO),
        ("t CONTAINS ''", NO),
        ("t NOT CONTAINS ''", NO),
        ("5 NOT CONTAINS '4'", NO),
        ("TRUE CONTAINS 'T'", NO),
        ("'axb' ENDSWITH 'xb'", YES),
    ]);
}
