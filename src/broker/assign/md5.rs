//! MD5 (RFC 1321), which places texts on the ring of [`ConsistentHash`](super::ConsistentHash). It is
//! no protection against anybody: it spreads, and must do so exactly as RocketMQ's.

/// The digest of `bytes`.
pub(super) fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    // The length takes the last 8 bytes of a block.
    padded.resize((padded.len() + 8).next_multiple_of(64), 0);
    let at = padded.len() - 8;
    padded[at..].copy_from_slice(&(8 * bytes.len() as u64).to_le_bytes());

    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476_u32];
    for block in padded.as_chunks::<64>().0 {
        let words = block.as_chunks::<4>().0;
        let mixed = mix(state, |nth| u32::from_le_bytes(words[nth]));
        for (word, mixed) in state.iter_mut().zip(mixed) {
            *word = word.wrapping_add(mixed);
        }
    }
    let mut digest = [0; 16];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_le_bytes();
    }
    digest
}

fn mix([mut a, mut b, mut c, mut d]: [u32; 4], word: impl Fn(usize) -> u32) -> [u32; 4] {
    for (nth, constant) in CONSTANTS.into_iter().enumerate() {
        let (mixed, at) = match nth / 16 {
            0 => ((b & c) | (!b & d), nth),
            1 => ((d & b) | (!d & c), (5 * nth + 1) % 16),
            2 => (b ^ c ^ d, (3 * nth + 5) % 16),
            _ => (c ^ (b | !d), 7 * nth % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(constant).wrapping_add(word(at));
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(TURNS[nth / 16][nth % 4]));
    }
    [a, b, c, d]
}

const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The first 32 bits behind the point of |sin(n)|, n from 1.
#[rustfmt::skip]
const CONSTANTS: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn alloc_7_digests_of_the_standard() {
        assert_eq!(hex(""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hex("a"), "0cc175b9c0f1b6a831c399e269772661");
        assert_eq!(hex("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
        let digits = "1234567890".repeat(8);
        assert_eq!(hex(&digits), "57edf4a22be3c955ac49da2e2107b67a");
    }

    /// Around the end of a block, where the padding needs one more.
    #[test]
    fn alloc_7_digests_of_every_length() {
        let sums = (0..200).map(|length| hex(&"x".repeat(length)));
        let all = sums.fold(String::new(), |all, sum| all + &sum);
        assert_eq!(hex(&all), "0f0e2ac786e6a42eac7e7de3a518cd0c");
    }
}
