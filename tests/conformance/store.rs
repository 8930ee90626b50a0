//! What stands in the log: records and their places, checksums, hashes, ids.

use super::{Hashes, NO_NULL, Store, Vectors};
use rocklet::{Message, MessageId};

// (STORE-12)
#[test]
fn store_5_end_of_file() {
    const FILLER: &str = "what is left of a file is covered by a record with a header of 64 bytes, or is nothing \
                          [STORE-3, STORE-5]";
    const SEGMENT: u64 = 64 << 10;
    let store = Store::with(|builder| builder.segment_bytes(SEGMENT));
    Vectors::read("end_of_file.json").run(|case| {
        let number = |name: &str| case[name].as_u64().unwrap();
        // Records begin at multiples of eight bytes.
        let (left, length) = (number("remaining") / 8 * 8, number("msg_len").next_multiple_of(8));
        if left < 64 {
            return Some(FILLER);
        }
        let (end, record) = store.end_at(SEGMENT - left, length);
        let same_file = record / SEGMENT == end / SEGMENT;
        assert_eq!(same_file, length == left || length + 64 <= left, "{case}");
        assert_eq!(record == end, same_file, "{case}");
        // Otherwise it is the first one of the next file.
        assert_eq!(record % SEGMENT == 64, !same_file, "{case}");
        (case["same_file"] != same_file).then_some(FILLER)
    });
}

impl Store {
    /// Lets the log end at byte `at` of a file and sends a message whose record has `length` bytes;
    /// returns that end and where the record stands.
    fn end_at(&self, at: u64, length: u64) -> (u64, u64) {
        const SEGMENT: u64 = 64 << 10;
        // Header and topic.
        const FIXED: u64 = 64 + 1;
        let send = |length: u64| {
            let body = vec![0; usize::try_from(length - FIXED).unwrap()];
            self.broker.producer().send(&Message::new("t", body)).unwrap().position
        };
        send(FIXED + 1);
        loop {
            let end = self.broker.stats().log_end;
            match at.checked_sub(end % SEGMENT) {
                Some(0) => return (end, send(length)),
                // Never leaves less than the next one needs.
                Some(gap) if gap >= 30_000 + 72 => drop(send(30_000)),
                Some(gap @ 72..) => drop(send(gap)),
                _ => drop(send(SEGMENT - end % SEGMENT - 64)),
            }
        }
    }
}

// (VEC-2)
#[test]
fn store_4_crc32() {
    const SEALED: &str = "a body of 0 bytes is refused [MODEL-7]";
    let expected: [(&[u8], u32); 4] = [
        (b"", 0),
        (b"hello", 0x3610_a686),
        (b"RocketMQ", 0x69e6_bbe1),
        (b"123456789", 0x4bf4_3926),
    ];
    assert!(expected.iter().all(|(text, sum)| crc32(0, text) & 0x7fff_ffff == *sum));
    let store = Store::new();
    store.broker.create_topic("t", 1).unwrap();
    Vectors::read("crc32.json").run(|case| {
        let Some(hex) = case["hex"].as_str() else { return Some(NO_NULL) };
        let body: Vec<u8> = (0..hex.len() / 2)
            .map(|nth| u8::from_str_radix(&hex[2 * nth..2 * nth + 2], 16).unwrap())
            .collect();
        assert_eq!(crc32(0, &body) & i32::MAX.cast_unsigned(), case["crc"], "{case}");
        if body.is_empty() {
            return Some(SEALED);
        }
        // The same sum, begun with the store's id, is what a record carries.
        let sent = store.broker.producer().send(&Message::new("t", body)).unwrap();
        let file = store.folder.path().join(format!("commitlog/{:020}", 0));
        let log = std::fs::read(file).unwrap();
        let u32_at = |at: usize| u32::from_le_bytes(log[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
        let at = usize::try_from(sent.position).unwrap();
        let length = usize::try_from(u32_at(at)).unwrap();
        // Topic, properties and body; then the words of the header are mixed in.
        let content = &log[at + 64..at + length - usize::from(log[at + 63])];
        let id = u64_at(16);
        let seed = u32::try_from(id >> 32 ^ id & u64::from(u32::MAX)).unwrap();
        let words = [8, 40, 48, 16, 24, 32, 56].map(|word| u64_at(at + word));
        let words = std::iter::once(u64::from(u32_at(at))).chain(words);
        let mixed = words.fold(u64::from(crc32(seed, content)), |mixed, word| {
            let product = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            product ^ product >> 32
        });
        assert_eq!(u64::from(u32_at(at + 4)), mixed >> 32, "{case}");
        None
    });
}

/// CRC-32 as of IEEE 802.3, a bit at a time, after what `before` is the sum of.
fn crc32(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    })
}

#[test]
fn store_37_index_key_hash() {
    let hashes = Hashes::new();
    Vectors::read("index_key_hash.json").run(|case| {
        let Some(key) = case["key"].as_str() else { return Some(NO_NULL) };
        hashes.compare(key, &case["java_hash"], case);
        // The sorted files of rocklet's index need neither the magnitude nor a slot.
        let hash = i32::try_from(case["java_hash"].as_i64().unwrap()).unwrap();
        let magnitude = hash.checked_abs().unwrap_or(0);
        assert_eq!(case["index_hash"], magnitude, "{case}");
        assert_eq!(case["slot_of_100"], magnitude % 100, "{case}");
        assert_eq!(case["slot_of_5000000"], magnitude % 5_000_000, "{case}");
        None
    });
}

#[test]
fn model_13_message_ids() {
    const HOST: &str =
        "an id has no address: the id of the store is in its place, behind the position [MODEL-13]";
    const DIGITS: &str =
        "what is not hexadecimal is refused, where it is read as something [MODEL-13]";
    const CLIENT: &str = "clients make no ids: that of `send` is the only one [MODEL-10, STORE-38]";
    // Address and port, then the position: rocklet has them the other way round.
    let turned = |text: &str| format!("{}{}", &text[16..], &text[..16]);
    Vectors::read("message_id.json").run(|case| {
        if case["op"] == "parse_uniq_key" {
            return Some(CLIENT);
        }
        let Some(text) = case["msg_id"].as_str() else { return Some(NO_NULL) };
        if case["op"] == "create" {
            if text.len() != 32 {
                assert!(text.parse::<MessageId>().is_err(), "{case}");
                return Some(HOST);
            }
            let id: MessageId = turned(text).parse().unwrap();
            assert_eq!(id.position(), case["offset"].as_i64().unwrap().cast_unsigned(), "{case}");
            assert_eq!(id.to_string(), turned(text).to_lowercase(), "{case}");
            return None;
        }
        let refused = case["expected"]["error"].is_string();
        let Ok(id) = text.parse::<MessageId>() else {
            let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            return match (refused, hexadecimal && text.len().is_multiple_of(2)) {
                (true, _) => None,
                (false, true) => Some(HOST),
                (false, false) => Some(DIGITS),
            };
        };
        if refused {
            return Some(HOST);
        }
        let offset = case["expected"]["offset"].as_i64().unwrap();
        let turned: MessageId = turned(text).parse().unwrap();
        assert_eq!(turned.position(), offset.cast_unsigned(), "{case}");
        assert_eq!(id.to_string(), text.to_lowercase(), "{case}");
        None
    });
}
