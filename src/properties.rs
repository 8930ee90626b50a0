//! Properties on the wire: items `name 0x01 value`, separated by 0x02 (MODEL-9).

/// Holds the tag (MODEL-10).
pub(crate) const TAGS: &str = "TAGS";

/// Holds the keys, joined by single spaces (MODEL-10).
pub(crate) const KEYS: &str = "KEYS";

/// Holds the user's flag, eight hexadecimal digits, absent when 0.
pub(crate) const FLAG: &str = "ROCKLET_FLAG";

/// Holds how long a message is delivered once it can be, in milliseconds, sixteen hexadecimal digits.
pub(crate) const TIME_TO_LIVE: &str = "ROCKLET_TTL";

/// Holds, of a copy, when that is over, in milliseconds since 1970, sixteen hexadecimal digits.
pub(crate) const EXPIRES: &str = "ROCKLET_EXPIRES";

/// Holds topic, queue and offset of a message that has expired, of which this is a copy, and the group
/// that keeps it.
pub(crate) const EXPIRED_FROM: &str = "ROCKLET_EXPIRED_FROM";

/// Holds the position of a message's first copy, sixteen hexadecimal digits; always the first item.
pub(crate) const FIRST_ID: &str = "ORIGIN_MESSAGE_ID";

/// Holds when a message is due, in milliseconds since 1970 (DELAY-10, DELAY-11).
pub(crate) const DUE: &str = "TIMER_OUT_MS";

/// Holds by how many milliseconds a message is delayed, unless it waits for an instant (DELAY-10).
pub(crate) const DELAY: &str = "TIMER_DELAY_MS";

/// Holds the topic of a message that a group has failed (MODEL-10, CONC-16).
pub(crate) const RETRY_TOPIC: &str = "RETRY_TOPIC";

/// Holds the queue and the offset in which such a message was first, in decimal.
pub(crate) const ORIGIN: &str = "ROCKLET_ORIGIN";

/// Holds why a group gave a message up.
pub(crate) const REASON: &str = "ROCKLET_REASON";

/// The most bytes that the encoded properties of one message may have (MODEL-8).
pub(crate) const MAX_BYTES: usize = 32_767;

/// A view of encoded properties, tolerant of any bytes.
///
/// As in RocketMQ, an item without name, separator or value does not count; neither does one that
/// is not UTF-8. Names are unique in what rocklet writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties<'a>(pub(crate) &'a [u8]);

impl<'a> Properties<'a> {
    /// The value of `name`, the first one should there be several.
    #[inline]
    pub(crate) fn get(self, name: &str) -> Option<&'a str> {
        let mut rest = self.0;
        while !rest.is_empty() {
            let (item, after) = split(rest, ITEM_SEPARATOR);
            // An item without a value does not count; no name asked for holds a separator.
            if let Some([VALUE_SEPARATOR, value @ ..]) = item.strip_prefix(name.as_bytes())
                && !value.is_empty()
                && !name.is_empty()
            {
                return str::from_utf8(value).ok();
            }
            rest = after;
        }
        None
    }

    /// The keys.
    pub(crate) fn keys(self) -> impl Iterator<Item = &'a str> {
        self.get(KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// The user's flag, 0 when absent.
    pub(crate) fn flag(self) -> i32 {
        let digits = self.get(FLAG).unwrap_or("0");
        u32::from_str_radix(digits, 16).map_or(0, u32::cast_signed)
    }

    /// The position of the message's first copy, if this is a later one.
    pub(crate) fn first_id(self) -> Option<u64> {
        let digits = self.0.strip_prefix(FIRST_ID.as_bytes())?.get(1..17)?;
        u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    }

    /// A time in milliseconds that [`Encoder::put_ms`] or [`ms_value`] has written.
    pub(crate) fn ms(self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.get(name)?, 16).ok()
    }

    /// All properties, reserved ones included, in the order written.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.items().filter_map(|(name, value)| {
            Some((str::from_utf8(name).ok()?, str::from_utf8(value).ok()?))
        })
    }

    /// The properties that a user gave, in the order written.
    pub(crate) fn user(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter(|(name, _)| !is_reserved(name))
    }

    fn items(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let (item, after) = split(rest, ITEM_SEPARATOR);
                let (name, value) = split(item, VALUE_SEPARATOR);
                rest = after;
                if !name.is_empty() && !value.is_empty() {
                    return Some((name, value));
                }
            }
            None
        })
    }
}

/// The bytes before and after the first `separator`; all and nothing without one.
#[inline]
fn split(bytes: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let at = find(bytes, separator).unwrap_or(bytes.len());
    (&bytes[..at], bytes.get(at + 1..).unwrap_or_default())
}

/// Where `wanted` stands first, looking at eight bytes at a time.
#[inline]
fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // A byte equal to the wanted one becomes 0, and the lowest 0 is the lowest to borrow.
        let zeroed = u64::from_le_bytes(*word) ^ (LOW * u64::from(wanted));
        let borrowed = zeroed.wrapping_sub(LOW) & !zeroed & HIGH;
        if borrowed != 0 {
            return Some(8 * index + borrowed.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&byte| byte == wanted)?;
    Some(8 * words.len() + at)
}

/// Whether a delay uses the property: a message that has been delayed does not have it any more, so
/// that nothing delays it again (DELAY-5, CONC-21).
pub(crate) fn is_of_delay(name: &str) -> bool {
    matches!(name, DUE | DELAY)
}

/// Whether the property limits the time in which a message is delivered.
pub(crate) fn is_of_life(name: &str) -> bool {
    matches!(name, TIME_TO_LIVE | EXPIRES)
}

/// A time as a value.
pub(crate) fn ms_value(ms: u64) -> String {
    format!("{ms:0MS_DIGITS$x}")
}

/// The wire form of these properties, none of which is blank or holds a separator.
pub(crate) fn encode<'a>(items: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in items {
        if !bytes.is_empty() {
            bytes.push(ITEM_SEPARATOR);
        }
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(VALUE_SEPARATOR);
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

/// Writes properties into a space of exactly their length.
pub(crate) struct Encoder<'a> {
    out: &'a mut [u8],
    filled: usize,
}

impl<'a> Encoder<'a> {
    #[inline]
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, filled: 0 }
    }

    /// Appends one property; neither part may be blank or hold a separator.
    #[inline]
    pub(crate) fn put(&mut self, name: &str, value: &str) {
        self.name(name);
        self.bytes(value.as_bytes());
    }

    /// Appends one property whose value is `parts` joined by single spaces.
    pub(crate) fn put_joined(
        &mut self,
        name: &str,
        mut parts: impl Iterator<Item = impl AsRef<str>>,
    ) {
        self.name(name);
        if let Some(first) = parts.next() {
            self.bytes(first.as_ref().as_bytes());
        }
        for part in parts {
            self.bytes(b" ");
            self.bytes(part.as_ref().as_bytes());
        }
    }

    /// Appends the user's flag.
    pub(crate) fn put_flag(&mut self, flag: i32) {
        self.name(FLAG);
        self.digits(flag.cast_unsigned().into(), FLAG_DIGITS);
    }

    /// Appends a time in milliseconds.
    pub(crate) fn put_ms(&mut self, name: &str, ms: u64) {
        self.name(name);
        self.digits(ms, MS_DIGITS);
    }

    fn digits(&mut self, number: u64, count: usize) {
        for digit in (0..count).rev() {
            let digit = number >> (4 * digit) & 0xf;
            self.bytes(&[b"0123456789abcdef"[digit as usize]]);
        }
    }

    #[inline]
    fn name(&mut self, name: &str) {
        if self.filled > 0 {
            self.bytes(&[ITEM_SEPARATOR]);
        }
        self.bytes(name.as_bytes());
        self.bytes(&[VALUE_SEPARATOR]);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }
}

/// The length of the value that [`put_flag`] writes.
pub(crate) const FLAG_DIGITS: usize = 8;

/// The length of the value that [`Encoder::put_ms`] writes.
pub(crate) const MS_DIGITS: usize = 16;

/// Whether `text` holds a byte that would end a name or a value early.
#[inline]
pub(crate) fn has_separator(text: &str) -> bool {
    // Without an early exit, which lets the compiler take many bytes at once.
    text.bytes().fold(false, |found, b| found | (b == VALUE_SEPARATOR) | (b == ITEM_SEPARATOR))
}

/// Whether users may not set `name`: the names of RocketMQ (MODEL-12), and whatever begins with
/// `TIMER_` (more of them in 5.x) or `ROCKLET_` (ours).
pub(crate) fn is_reserved(name: &str) -> bool {
    name.as_bytes().first().is_some_and(u8::is_ascii_uppercase)
        && (name.starts_with("TIMER_")
            || name.starts_with("ROCKLET_")
            || matches!(
                name,
                "KEYS"
                    | "TAGS"
                    | "WAIT"
                    | "DELAY"
                    | "RETRY_TOPIC"
                    | "REAL_TOPIC"
                    | "REAL_QID"
                    | "TRAN_MSG"
                    | "PGROUP"
                    | "MIN_OFFSET"
                    | "MAX_OFFSET"
                    | "BUYER_ID"
                    | "ORIGIN_MESSAGE_ID"
                    | "TRANSFER_FLAG"
                    | "CORRECTION_FLAG"
                    | "MQ2_FLAG"
                    | "RECONSUME_TIME"
                    | "MSG_REGION"
                    | "TRACE_ON"
                    | "UNIQ_KEY"
                    | "MAX_RECONSUME_TIMES"
                    | "CONSUME_START_TIME"
                    | "TRAN_PREPARED_QUEUE_OFFSET"
                    | "TRANSACTION_CHECK_TIMES"
                    | "CHECK_IMMUNITY_TIME_IN_SECONDS"
                    | "INSTANCE_ID"
                    | "CORRELATION_ID"
                    | "REPLY_TO_CLIENT"
                    | "TTL"
                    | "ARRIVE_TIME"
                    | "PUSH_REPLY_TIME"
                    | "CLUSTER"
                    | "MSG_TYPE"
            ))
}

/// `text` as a value: without separators, not blank, and cut to `limit` bytes.
pub(crate) fn value_of(text: &str, limit: usize) -> String {
    let text = crate::names::trim(text);
    let cut = (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let text = &text[..cut.unwrap_or(0)];
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    if text.is_empty() { "none given".to_owned() } else { text.chars().map(plain).collect() }
}

const VALUE_SEPARATOR: u8 = 1;
const ITEM_SEPARATOR: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// As in `tests/conformance/`, which cannot reach the decoder.
    fn recorded() -> Vec<serde_json::Value> {
        const FILE: &str = include_str!("../tests/vectors/properties_encoding.json");
        let folder = std::env::var_os("ROCKLET_VECTORS").map(std::path::PathBuf::from);
        let other = folder.map(|folder| folder.join("properties_encoding.json"));
        let text = other.map(|path| std::fs::read_to_string(path).expect("ROCKLET_VECTORS"));
        serde_json::from_str(text.as_deref().unwrap_or(FILE)).expect("the vectors are JSON")
    }

    #[test]
    fn model_9_encoded_items_are_read_back() {
        let expected: &[u8] =
            b"TAGS\x01paid\x02KEYS\x01o-42 o-43\x02ROCKLET_FLAG\x01fffffffe\x02a=b\x01 c;d ";
        let mut out = vec![0; expected.len()];
        let mut encoder = Encoder::new(&mut out);
        encoder.put(TAGS, "paid");
        encoder.put_joined(KEYS, ["o-42", "o-43"].into_iter());
        encoder.put_flag(-2);
        encoder.put("a=b", " c;d ");
        assert_eq!(out, expected);
        let read = Properties(&out);
        assert_eq!(read.get(TAGS), Some("paid"));
        assert_eq!(read.get("a=b"), Some(" c;d "));
        assert_eq!(read.get("a"), None);
        assert_eq!(read.get(""), None);
        assert_eq!(read.flag(), -2);
        assert_eq!(read.iter().count(), 4);
        assert_eq!(read.user().collect::<Vec<_>>(), [("a=b", " c;d ")]);
    }

    #[test]
    fn model_9_decoding_of_recorded_text() {
        let cases = recorded();
        for case in cases {
            let encoded = case["encoded"].as_str().unwrap();
            let found: BTreeMap<_, _> = Properties(encoded.as_bytes()).iter().collect();
            let expected = case["decoded"].as_object().unwrap();
            let expected: BTreeMap<_, _> =
                expected.iter().map(|(name, v)| (name.as_str(), v.as_str().unwrap())).collect();
            assert_eq!(found, expected, "{case}");
            let unique = expected.len() == Properties(encoded.as_bytes()).iter().count();
            for (name, value) in expected.into_iter().filter(|_| unique) {
                assert_eq!(Properties(encoded.as_bytes()).get(name), Some(value), "{case}");
            }
        }
    }

    #[test]
    fn model_9_encoding_of_recorded_pairs() {
        let cases = recorded();
        let mut compared = 0;
        for case in cases {
            let Some(pairs) = case["pairs"].as_array() else { continue };
            let mut out = vec![0; case["encoded"].as_str().unwrap_or_default().len() + 64];
            let mut encoder = Encoder::new(&mut out);
            for pair in pairs {
                // Refused before they reach the encoder: absent and blank parts, separators.
                let (Some(name), Some(value)) = (pair[0].as_str(), pair[1].as_str()) else { break };
                if name.is_empty()
                    || value.is_empty()
                    || has_separator(name)
                    || has_separator(value)
                {
                    break;
                }
                encoder.put(name, value);
            }
            let filled = encoder.filled;
            out.truncate(filled);
            if Properties(&out).iter().count() == pairs.len() {
                assert_eq!(out.as_slice(), case["encoded"].as_str().unwrap().as_bytes(), "{case}");
                compared += 1;
            }
        }
        assert!(compared > 0);
    }

    #[test]
    fn model_9_separators_are_found_wherever_they_stand() {
        for length in 0..40 {
            for at in 0..length {
                let mut bytes = vec![0xff_u8; length];
                bytes[at..].iter_mut().step_by(3).for_each(|byte| *byte = 2);
                for (index, byte) in bytes[..at].iter_mut().enumerate() {
                    *byte = [0, 1, 3, 0x82][index % 4];
                }
                assert_eq!(find(&bytes, 2), Some(at), "{bytes:?}");
                assert_eq!(find(&bytes[..at], 2), None, "{bytes:?}");
            }
        }
    }

    #[test]
    fn model_9_garbage_never_panics_and_hides_no_neighbour() {
        let found = |bytes: &'static [u8]| Properties(bytes).iter().collect::<Vec<_>>();
        assert_eq!(found(b"a\x01\xff\x02b\x012"), [("b", "2")]);
        assert_eq!(found(b"\xfe\x01x\x02b\x012"), [("b", "2")]);
        assert_eq!(Properties(b"a\x01\xff\x02b\x012").get("a"), None);
        assert_eq!(Properties(b"ROCKLET_FLAG\x01what?").flag(), 0);
        let mut noise = [0_u8; 64];
        let mut state = 1_u32;
        for _ in 0..20_000 {
            for byte in &mut noise {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = if state >> 30 == 0 { (state >> 8) as u8 % 3 } else { (state >> 8) as u8 };
            }
            let view = Properties(&noise);
            assert!(view.iter().all(|(name, value)| !name.is_empty() && !value.is_empty()));
            let _ = (view.flag(), view.get("a"), view.user().count());
        }
    }

    #[test]
    fn model_14_the_id_of_a_first_copy_stands_in_front() {
        let id = format!("{:016x}", 0x1040);
        let bytes = encode([(FIRST_ID, &*id), ("a", "1")].into_iter());
        assert_eq!(bytes, b"ORIGIN_MESSAGE_ID\x010000000000001040\x02a\x011");
        assert_eq!(Properties(&bytes).first_id(), Some(0x1040));
        assert_eq!(Properties(&bytes).user().collect::<Vec<_>>(), [("a", "1")]);
        for other in [&b""[..], b"a\x011", b"ORIGIN_MESSAGE_ID\x01", b"ORIGIN_MESSAGE_ID\x01zz"] {
            assert_eq!(Properties(other).first_id(), None);
        }
    }

    #[test]
    fn model_12_reserved_names() {
        let ours = "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET \
            MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG \
            RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME \
            TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS \
            INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER \
            MSG_TYPE TIMER_DELAY_SEC TIMER_OUT_MS ROCKLET_FLAG";
        assert!(ours.split_whitespace().all(is_reserved));
        assert!(["tags", "Tags", "KEYS2", "FLAG", "", "row"].iter().all(|name| !is_reserved(name)));
    }
}
