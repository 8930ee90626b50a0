//! The rules for names of topics, groups and consumers (MODEL-5, MODEL-6, MODEL-15, MODEL-16).

use crate::error::{Error, Result};

/// Prefix of the topic that holds a group's messages to be delivered again (MODEL-17).
pub(crate) const RETRY_PREFIX: &str = "%RETRY%";

/// Prefix of the topic that holds what a group gave up on (MODEL-17).
pub(crate) const DEAD_LETTER_PREFIX: &str = "%DLQ%";

const MAX_TOPIC: usize = 127;
/// So that `%RETRY%` and the group together still make a legal topic (MODEL-6).
const MAX_GROUP: usize = MAX_TOPIC - RETRY_PREFIX.len();
const MAX_VISIBLE: usize = 255;

/// The topic that holds a group's messages to be delivered again.
pub(crate) fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

/// The topic that holds what a group gave up on.
pub(crate) fn dead_letter_topic(group: &str) -> String {
    format!("{DEAD_LETTER_PREFIX}{group}")
}

/// Whether the broker makes such a topic for a group.
#[inline]
pub(crate) fn is_of_a_group(topic: &str) -> bool {
    topic.starts_with('%')
        && (topic.starts_with(RETRY_PREFIX) || topic.starts_with(DEAD_LETTER_PREFIX))
}

/// Refuses what may not be a user's topic: one verdict for create, send and subscribe (B-063).
///
/// The system topics of RocketMQ are refused even where rocklet has no use for them yet
/// (MODEL-15): a name once taken by users cannot be reserved later.
#[inline]
pub(crate) fn check_topic(name: &str) -> Result<()> {
    let reason = if is_blank(name) {
        BLANK
    } else if name.len() > MAX_TOPIC {
        "is longer than 127 characters"
    } else if !is_legal(name) {
        ALPHABET_RULE
    } else if is_reserved_topic(name) {
        "is reserved for the system; choose another one"
    } else {
        return Ok(());
    };
    Err(refuse("topic", name, reason))
}

/// Refuses what may not be a user's group.
pub(crate) fn check_group(name: &str) -> Result<()> {
    let reason = if is_blank(name) {
        BLANK
    } else if name.len() > MAX_GROUP {
        "is longer than 120 characters"
    } else if !is_legal(name) {
        ALPHABET_RULE
    } else if matches!(name, "DEFAULT_PRODUCER" | "DEFAULT_CONSUMER")
        || name.starts_with("CID_RMQ_SYS_")
    {
        "is reserved for the system; choose another one"
    } else {
        return Ok(());
    };
    Err(refuse("group", name, reason))
}

/// Refuses what may not name a member of a group. The alphabet is wider than that of topics, for
/// the sake of host names and client ids of RocketMQ such as `10.0.0.1@4711#7`.
pub(crate) fn check_consumer(name: &str) -> Result<()> {
    check_visible("consumer", name)
}

/// Refuses what may not be the label of a broker.
pub(crate) fn check_label(name: &str) -> Result<()> {
    check_visible("label", name)
}

fn check_visible(what: &'static str, name: &str) -> Result<()> {
    let reason = if is_blank(name) {
        BLANK
    } else if name.len() > MAX_VISIBLE {
        "is longer than 255 characters"
    } else if !name.bytes().all(|b| b.is_ascii_graphic()) {
        "may only hold visible ASCII characters"
    } else {
        return Ok(());
    };
    Err(refuse(what, name, reason))
}

/// Java's `trim`, by which RocketMQ reads tags and tests properties: strips characters up to
/// U+0020, control characters included, and no other blanks.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// Whether [`trim`] leaves nothing.
#[inline]
pub(crate) fn is_blank(text: &str) -> bool {
    text.bytes().all(|b| b <= b' ')
}

#[inline]
fn is_legal(name: &str) -> bool {
    // Without an early exit, which would cost more than the few bytes it saves.
    name.bytes().fold(true, |legal, b| legal & ALPHABET[usize::from(b)])
}

#[inline]
fn is_reserved_topic(name: &str) -> bool {
    match name.as_bytes() {
        [b'%', ..] => is_of_a_group(name),
        [b'r', ..] => name.starts_with("rmq_sys_"),
        _ => matches!(
            name,
            "TBW102"
                | "SCHEDULE_TOPIC_XXXX"
                | "RMQ_SYS_TRANS_HALF_TOPIC"
                | "RMQ_SYS_TRANS_OP_HALF_TOPIC"
                | "RMQ_SYS_TRACE_TOPIC"
                | "TRANS_CHECK_MAX_TIME_TOPIC"
                | "OFFSET_MOVED_EVENT"
                | "SELF_TEST_TOPIC"
                | "BenchmarkTest"
        ),
    }
}

/// The name is cut in the error, as nothing bounds what a caller passes.
#[cold]
fn refuse(what: &'static str, name: &str, reason: &'static str) -> Error {
    Error::Name { what, name: name.chars().take(MAX_VISIBLE + 1).collect(), reason }
}

const BLANK: &str = "is blank";
const ALPHABET_RULE: &str = "may only hold letters A-Z and a-z, digits and the characters % | _ -";

const ALPHABET: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(checked: Result<()>) -> &'static str {
        match checked {
            Err(Error::Name { reason, .. }) => reason,
            other => panic!("expected Error::Name, got {other:?}"),
        }
    }

    #[test]
    fn model_5_topic_alphabet_and_length() {
        for name in ["a", "TopicTest", "%", "|", "a%b", "0-9_", "ns%topic", &"a".repeat(127)] {
            check_topic(name).unwrap();
        }
        for blank in ["", " ", "\t", "\u{0}\u{1f}"] {
            assert_eq!(reason(check_topic(blank)), "is blank");
        }
        for byte in (0..=127_u8).map(char::from) {
            let legal = byte.is_ascii_alphanumeric() || "%|_-".contains(byte);
            assert_eq!(check_topic(&format!("a{byte}b")).is_ok(), legal, "{byte:?}");
        }
        assert_eq!(reason(check_topic(&"a".repeat(128))), "is longer than 127 characters");
    }

    #[test]
    fn model_5_group_alphabet_and_reserved_defaults() {
        for name in ["g", "billing", "%RETRY%g", "a|b"] {
            check_group(name).unwrap();
        }
        for name in ["", " ", "a b", "a.b", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER"] {
            reason(check_group(name));
        }
    }

    #[test]
    fn model_6_the_retry_topic_of_every_legal_group_is_a_legal_length() {
        let longest = "g".repeat(120);
        check_group(&longest).unwrap();
        assert!(is_legal(RETRY_PREFIX) && RETRY_PREFIX.len() + longest.len() <= MAX_TOPIC);
        assert!(is_legal(DEAD_LETTER_PREFIX) && DEAD_LETTER_PREFIX.len() < RETRY_PREFIX.len());
        assert_eq!(reason(check_group(&"g".repeat(121))), "is longer than 120 characters");
    }

    #[test]
    fn model_15_and_16_system_topics_are_refused() {
        for name in [
            "TBW102",
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "OFFSET_MOVED_EVENT",
            "SELF_TEST_TOPIC",
            "BenchmarkTest",
            "RMQ_SYS_TRACE_TOPIC",
            "rmq_sys_",
            "rmq_sys_x",
        ] {
            reason(check_topic(name));
        }
        for name in ["tbw102", "TBW102x", "rmq_sys", "RMQ_SYS_x", "benchmarktest"] {
            check_topic(name).unwrap();
        }
        reason(check_group("CID_RMQ_SYS_TRANS"));
    }

    #[test]
    fn model_17_topics_of_groups_are_refused_for_users() {
        for name in ["%RETRY%", "%RETRY%g", "%DLQ%g", "%RETRY%ns%g"] {
            reason(check_topic(name));
        }
        check_topic("a%RETRY%g").unwrap();
        check_topic("%retry%g").unwrap();
    }

    #[test]
    fn b_063_path_tricks_are_refused() {
        for name in ["../x", "a/b", "/abs", ".", "..", "a\u{0}b", "caf\u{e9}", "a\\b", "a\u{1f680}"]
        {
            reason(check_topic(name));
            reason(check_group(name));
        }
    }

    #[test]
    fn consumer_names_are_visible_ascii() {
        for name in ["m1", "10.0.0.1@4711#7", &"n".repeat(255)] {
            check_consumer(name).unwrap();
        }
        for name in ["", " ", "a b", "a\u{1}", "\u{e9}", &"n".repeat(256)] {
            reason(check_consumer(name));
        }
    }

    #[test]
    fn a_refused_name_is_cut_in_the_error() {
        let Err(Error::Name { name, .. }) = check_topic(&"\u{e9}".repeat(1 << 20)) else {
            panic!()
        };
        assert_eq!(name.chars().count(), 256);
    }

    #[test]
    fn sub_2_trim_is_that_of_java() {
        assert_eq!(trim("\u{0}\u{1f} a b \r\n"), "a b");
        assert_eq!(trim("\u{3000}a\u{a0}"), "\u{3000}a\u{a0}");
        assert!(is_blank("") && is_blank(" \u{1}") && !is_blank("\u{3000}"));
    }
}
