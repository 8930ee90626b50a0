use super::*;
use crate::properties::Properties;
use crate::string_hash::string_hash;

const MAX_BODY: usize = 4 << 20;

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = vec![0; message.properties_len()];
    message.encode_properties(&mut out);
    out
}

fn message() -> Message<'static> {
    Message::new("t", b"x")
}

fn refused(message: &Message<'_>) -> bool {
    matches!(message.validate(MAX_BODY), Err(Error::Property { .. }))
}

#[test]
fn model_5_topic_is_checked_apart_from_the_content() {
    let bad = Message::new("a/b", b"x");
    assert!(matches!(bad.validate(MAX_BODY), Err(Error::Name { what: "topic", .. })));
    bad.validate_content(MAX_BODY).unwrap();
    Message::new("t".repeat(127), b"x").validate(MAX_BODY).unwrap();
}

#[test]
fn model_7_body_must_be_there_and_within_the_limit() {
    let body = vec![0; 11];
    assert!(matches!(Message::new("t", b"").validate(10), Err(Error::EmptyBody)));
    Message::new("t", &body[..10]).validate(10).unwrap();
    assert!(matches!(
        Message::new("t", &body).validate(10),
        Err(Error::TooLarge { what: "body", length: 11, limit: 10 })
    ));
}

#[test]
fn model_8_encoded_properties_have_at_most_32767_bytes() {
    let filled = |bytes: usize| message().property("p", "v".repeat(bytes - 2));
    let fits = filled(32_767);
    fits.validate(MAX_BODY).unwrap();
    assert_eq!(encoded(&fits).len(), 32_767);
    assert!(matches!(
        filled(32_768).validate(MAX_BODY),
        Err(Error::TooLarge { what: "properties", length: 32_768, limit: 32_767 })
    ));
}

#[test]
fn model_8_bytes_count_not_characters() {
    let wide = "\u{4e2d}".repeat(32_767 / 3);
    assert!(wide.chars().count() < 32_767);
    assert!(matches!(
        message().property("p", wide).validate(MAX_BODY),
        Err(Error::TooLarge { length: 32_768, .. })
    ));
}

#[test]
fn model_8_tag_keys_and_flag_count() {
    let almost = || message().property("p", "v".repeat(32_767 - 2 - 9));
    almost().tag("ab").key("k").validate(MAX_BODY).unwrap_err();
    almost().flag(1).validate(MAX_BODY).unwrap_err();
    almost().tag("abc").validate(MAX_BODY).unwrap();
}

#[test]
fn model_9_wire_form_begins_with_tag_and_keys() {
    let full = message()
        .property("z", "1")
        .property("a", "2")
        .flag(1)
        .key("k1")
        .key("k2")
        .key("k3")
        .tag("T");
    assert_eq!(
        &encoded(&full)[..],
        b"TAGS\x01T\x02KEYS\x01k1 k2 k3\x02ROCKLET_FLAG\x0100000001\x02z\x011\x02a\x012"
    );
    assert_eq!(&encoded(&message().tag("T"))[..], b"TAGS\x01T");
    assert_eq!(&encoded(&message().key("k"))[..], b"KEYS\x01k");
    assert!(encoded(&message()).is_empty());
}

#[test]
fn model_9_properties_are_a_map() {
    let twice = message().property("a", "1").property("b", "2").property("a", "3");
    assert_eq!(&encoded(&twice)[..], b"a\x013\x02b\x012");
}

#[test]
fn model_9_blank_names_and_values_are_refused() {
    for blank in ["", " ", "\t\n", "\u{0}"] {
        assert!(refused(&message().property(blank, "v")));
        assert!(refused(&message().property("n", blank)));
        assert!(refused(&message().tag(blank)));
        assert!(refused(&message().key(blank)));
        assert!(refused(&message().key("k").key(blank)));
    }
}

#[test]
fn model_10_every_field_of_the_user_is_kept() {
    let sent = message().tag("T").key("a").key("b").property("p", "v").flag(-7).born_ms(12);
    let sent = sent.order_by("k").into_owned();
    assert_eq!((sent.topic(), sent.body(), sent.born_ms), ("t", &b"x"[..], Some(12)));
    assert!(matches!(&sent.placement, Placement::Key(key) if key == "k"));
    let out = encoded(&sent);
    let read = Properties(&out);
    assert_eq!(read.get(TAGS), Some("T"));
    assert_eq!(read.get(KEYS), Some("a b"));
    assert_eq!(read.get("p"), Some("v"));
    assert_eq!(read.flag(), -7);
}

#[test]
fn model_10_a_key_with_a_space_is_refused() {
    assert!(refused(&message().key("a b")));
    assert!(refused(&message().key("a").key(" b")));
    message().key("a\u{3000}b").key("tab\tbed").validate(MAX_BODY).unwrap();
}

#[test]
fn model_12_reserved_names_are_refused() {
    for name in ["TAGS", "KEYS", "DELAY", "RECONSUME_TIME", "UNIQ_KEY", "TIMER_X", FLAG] {
        assert!(refused(&message().property(name, "1")), "{name}");
    }
    message().property("tags", "1").validate(MAX_BODY).unwrap();
}

#[test]
fn b_059_odd_text_is_carried_exactly_or_refused() {
    let odd = ["\u{1}", "\u{2}", "a\u{1}b", "a\u{2}b\u{1}c", "\n", "a\nb", "\u{0}", "a\u{0}", "="];
    let more =
        ["", " ", " lead", "trail ", "\u{1f680}", "DELAY\u{1}3", "x\u{2}DELAY\u{1}3", "a||b"];
    for text in odd.into_iter().chain(more) {
        let carried = |sent: Message<'_>, name: &str, value: &str| {
            if !refused(&sent) {
                let sent = sent.property("guard", "g");
                let out = encoded(&sent);
                let read: Vec<_> = Properties(&out).iter().collect();
                assert_eq!(read, [(name, value), ("guard", "g")], "{text:?}");
            }
        };
        carried(message().property("n", text), "n", text);
        carried(message().property(text, "v"), text, "v");
        carried(message().tag(text), TAGS, text);
        carried(message().key(text), KEYS, text);
    }
}

#[test]
fn store_22_tag_hash_of_recorded_tags() {
    let cases = include_str!("../../tests/vectors/tags_code.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
    for case in cases {
        let tagged = match case["tags"].as_str() {
            Some(tag) => message().tag(tag),
            None => message(),
        };
        let hash = match tagged.validate_content(MAX_BODY) {
            Ok(checked) => checked.tag_hash,
            // Some of them cannot be sent.
            Err(_) => string_hash(&tagged.tag.unwrap()),
        };
        assert_eq!(Some(i64::from(hash)), case["code"].as_i64(), "{case}");
    }
}

#[test]
fn prod_12_conflicting_placements_are_refused() {
    for two in [
        message().queue(1).order_by("k"),
        message().order_by("k").order_by("k"),
        message().select(|queues| queues.first().cloned()).queue(0),
        message().select(|_| None).into_owned(),
    ] {
        assert!(matches!(two.validate(MAX_BODY), Err(Error::NoQueueChosen { .. })), "{two:?}");
    }
    message().select(|_| None).into_owned().queue(1).validate(MAX_BODY).unwrap();
}

#[test]
fn messages_of_different_lifetimes_share_a_batch() {
    fn batch<'b>(owned: Message<'static>, body: &'b [u8]) -> [Message<'b>; 2] {
        [owned, Message::new("t", body)]
    }
    let body = vec![1];
    assert_eq!(batch(message(), &body)[1].body(), [1]);
}

#[test]
fn debug_shows_the_length_of_the_body_instead_of_the_body() {
    let shown = format!("{:?}", Message::new("t", vec![7; 1000]).select(|_| None));
    assert!(shown.contains("body_len: 1000") && shown.contains("Select"), "{shown}");
}
