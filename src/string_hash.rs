//! Java's string hash, by which RocketMQ indexes tags and places ordered keys. Both uses are on
//! disk or visible in the order of messages, so it is fixed for ever.

/// Hashes the UTF-16 units of `text` with `h = 31 * h + unit`, wrapping (STORE-22).
#[inline]
pub(crate) fn string_hash(text: &str) -> i32 {
    if text.is_ascii() {
        return hash_ascii(text.as_bytes()).cast_signed();
    }
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

/// The queue, of `queues`, that takes every message ordered by `key`: `|hash mod queues|`, the
/// remainder having the sign of the hash (PROD-12).
#[inline]
pub(crate) fn queue_for(key: &str, queues: u16) -> u16 {
    let remainder = string_hash(key).checked_rem(queues.into()).unwrap_or(0).unsigned_abs();
    u16::try_from(remainder).unwrap_or(0)
}

/// Four units a step, which shortens the chain of dependent multiplications to a quarter.
#[inline]
fn hash_ascii(bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<4>();
    let hash = steps.iter().fold(0_u32, |hash, &[a, b, c, d]| {
        let step = u32::from(a) * 31_u32.pow(3)
            + u32::from(b) * 31_u32.pow(2)
            + u32::from(c) * 31
            + u32::from(d);
        hash.wrapping_mul(31_u32.pow(4)).wrapping_add(step)
    });
    rest.iter().fold(hash, |hash, &unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_unit_at_a_time(text: &str) -> i32 {
        text.encode_utf16().fold(0_i32, |h, c| h.wrapping_mul(31).wrapping_add(c.into()))
    }

    #[test]
    fn store_22_hash_of_every_length_equals_the_plain_rule() {
        let ascii: String = (0..300_u32).map(|i| char::from((i * 37 % 95 + 32) as u8)).collect();
        for length in 0..ascii.len() {
            assert_eq!(string_hash(&ascii[..length]), one_unit_at_a_time(&ascii[..length]));
        }
        for text in ["\u{6807}\u{7b7e}", "a\u{e9}b", "\u{1f680}||x", "\u{0}", "\u{7f}\u{80}"] {
            assert_eq!(string_hash(text), one_unit_at_a_time(text), "{text:?}");
        }
    }

    #[test]
    fn store_22_hash_takes_a_supplementary_character_as_two_units() {
        assert_eq!(string_hash("\u{1f680}"), 0xd83d * 31 + 0xde80);
    }

    #[test]
    fn store_22_hash_of_recorded_strings() {
        let file = include_str!("../tests/vectors/tags.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(file).unwrap();
        let hashes: Vec<_> = cases.iter().filter(|case| case["op"] == "hashCode").collect();
        assert!(!hashes.is_empty());
        for case in hashes {
            let hash = string_hash(case["string"].as_str().unwrap());
            assert_eq!(i64::from(hash), case["expected"].as_i64().unwrap(), "{case}");
        }
    }

    #[test]
    fn vec_1_hash_of_the_strings_of_the_specification() {
        let expected = [
            ("", 0),
            ("a", 97),
            ("TagA", 2_598_919),
            ("TagB", 2_598_920),
            ("Aa", 2112),
            ("BB", 2112),
            ("AaAa", 2_031_744),
            ("BBBB", 2_031_744),
            ("\u{65e5}\u{672c}", 835_047),
            ("\u{1f600}", 1_772_899),
            ("polygenelubricants", i32::MIN),
        ];
        for (text, hash) in expected {
            assert_eq!(string_hash(text), hash, "{text:?}");
        }
    }

    #[test]
    fn prod_12_queue_is_the_magnitude_of_the_signed_remainder() {
        assert_eq!(string_hash("polygenelubricants"), i32::MIN);
        assert_eq!(queue_for("polygenelubricants", 3), 2, "-2147483648 mod 3 = -2");
        assert_eq!(queue_for("polygenelubricants", 4), 0);
        assert_eq!(string_hash("Tag31676"), -741_860_547);
        assert_eq!(queue_for("Tag31676", 10), 7, "-741860547 mod 10 = -7, not 3");
        assert_eq!(queue_for("", 10), 0);
        assert_eq!(queue_for("TagA", u16::MAX), u16::try_from(2_598_919 % 65_535).unwrap());
    }

    #[test]
    fn prod_12_queue_is_always_one_of_the_topic() {
        for queues in [1, 2, 3, 7, 4096, u16::MAX] {
            for i in 0..500 {
                assert!(queue_for(&format!("key-{i}"), queues) < queues);
            }
        }
        assert_eq!(queue_for("a", 0), 0, "no queue to choose from: left to the caller");
    }
}
