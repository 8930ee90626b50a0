//! An SQL92 expression, taken from the input as it is or put together from words that it chooses,
//! is refused with a place in it, or evaluated. Whatever it says, some things hold of any.

use crate::bytes::Bytes;
use rocklet::{Broker, Deliveries, Error, Filter, Message};
use std::sync::OnceLock;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let text =
        if bytes.flag() { String::from_utf8_lossy(bytes.0).into() } else { put_together(bytes) };
    let filter = match Filter::sql(&text) {
        Ok(filter) => filter,
        Err(error) => return check(&text, &error),
    };
    assert_eq!(filter.to_string(), text);
    assert_eq!(derived("(", &text, ")"), Some(filter.clone()), "{text}");
    let same = derived("(", &text, ") AND TRUE");
    let contrary = derived("NOT (", &text, ")");
    let unknown = derived("(", &text, ") IS NULL");
    for message in messages() {
        let passes = filter.passes(&message);
        if let Some(same) = &same {
            assert_eq!(same.passes(&message), passes, "{text} {message:?}");
        }
        let others = [&contrary, &unknown].into_iter().flatten();
        assert!(usize::from(passes) + others.filter(|other| other.passes(&message)).count() <= 1);
    }
}

/// The expression as a part of a larger one, unless that is too high or too long.
fn derived(before: &str, text: &str, behind: &str) -> Option<Filter> {
    match Filter::sql(&format!("{before}{text}{behind}")) {
        Ok(filter) => Some(filter),
        Err(Error::Sql { reason, .. }) if reason.contains("256") => None,
        Err(error) => panic!("{error}"),
    }
}

fn check(text: &str, error: &Error) {
    let Error::Sql { line, column, position, reason } = error else { panic!("{error:?}") };
    assert!(text.is_char_boundary(*position) && !reason.is_empty(), "{error:?}");
    assert!(*column <= line.chars().count() && !line.contains('\n'), "{error:?}");
    assert!(error.to_string().ends_with('^'));
}

fn put_together(mut bytes: Bytes<'_>) -> String {
    let mut text = String::new();
    while !bytes.is_empty() && text.len() < 4096 {
        text += WORDS[bytes.below(WORDS.len())];
        if bytes.flag() {
            text.push(' ');
        }
    }
    text
}

const WORDS: [&str; 64] = [
    "a",
    "b",
    "c",
    "d",
    "none",
    "TAGS",
    "KEYS",
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "(",
    ")",
    "(",
    ")",
    ",",
    "AND",
    "OR",
    "NOT",
    "not",
    "IS",
    "NULL",
    "IS NULL",
    "IS NOT NULL",
    "IN ('x','5')",
    "NOT IN ('y')",
    "IN",
    "BETWEEN 1 AND 5",
    "NOT BETWEEN",
    "BETWEEN",
    "LIKE '%x_%'",
    "LIKE 'a!%' ESCAPE '!'",
    "NOT LIKE",
    "CONTAINS '5'",
    "NOT STARTSWITH 'x'",
    "ENDSWITH ''",
    "TRUE",
    "FALSE",
    "0",
    "5",
    "-5",
    "+",
    "-",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "0.0",
    "5.5",
    ".5e1",
    "1e308",
    "1e309",
    "5L",
    "'x'",
    "'5'",
    "'it''s'",
    "'",
    "/* c */",
    "-- c\n",
    "--",
    "\n",
    "$",
    "\u{1f680}",
];

/// Messages that were received, with values of every kind.
fn messages() -> &'static Deliveries {
    static MESSAGES: OnceLock<Deliveries> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        let values = [
            "5",
            "-5",
            "5.5",
            "x",
            "true",
            "NaN",
            "9223372036854775808",
            "0x1p-3",
            "\u{665}",
            "it's",
        ];
        for (nth, value) in values.iter().enumerate() {
            let mut message = Message::new("t", b"x").queue(0).property("a", *value);
            for (name, step) in [("b", 1), ("c", 3), ("d", 7)] {
                if nth % step != 1 {
                    message = message.property(name, values[(nth + step) % values.len()]);
                }
            }
            broker.producer().send(&message.tag("x").key(value.replace(' ', ""))).unwrap();
        }
        broker.browse("t").unwrap().read(values.len()).unwrap()
    })
}
