//! Long, deep and odd texts.

use super::super::grammar::{LONGEST, parse};
use super::super::part::DEEPEST;
use super::*;
use std::cell::Cell;

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
