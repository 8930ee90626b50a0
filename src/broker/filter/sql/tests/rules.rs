//! What expressions make of properties, rule by rule.

use super::*;

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
