use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Identifies a message: where it was first stored, and in which directory (MODEL-13).
///
/// Copies made for a retry or after a delay keep the id of the first one (MODEL-14). The text form
/// is 32 hexadecimal digits; ids of one directory sort by age, as values and as text.
///
/// ```
/// # use rocklet::MessageId;
/// let id: MessageId = "000000000000104000c0ffee00c0ffee".parse()?;
/// assert_eq!(id.to_string(), "000000000000104000c0ffee00c0ffee");
/// # Ok::<_, rocklet::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    position: u64,
    store: u64,
}

impl MessageId {
    pub(crate) fn new(position: u64, store: u64) -> Self {
        Self { position, store }
    }

    /// Whether it names a message of this store.
    pub(crate) fn is_of(&self, store: u64) -> bool {
        self.store == store
    }

    /// The position of the first copy in the commit log, in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.position, self.store)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

impl FromStr for MessageId {
    type Err = Error;

    /// Reads the text form, in either case.
    ///
    /// # Errors
    /// `Name` if it is anything but 32 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self> {
        let part = |from: usize| {
            let digits = text.get(from..from + 16)?;
            // `from_str_radix` alone would take a sign.
            let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        match (text.len(), part(0), part(16)) {
            (32, Some(position), Some(store)) => Ok(Self { position, store }),
            _ => Err(Error::Name {
                what: "message id",
                name: text.chars().take(33).collect(),
                reason: "must have exactly 32 hexadecimal digits",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_13_text_form_is_fixed_width_and_read_back() {
        for id in [
            MessageId::new(0, 0),
            MessageId::new(0x1040, 0xabc),
            MessageId::new(u64::MAX, u64::MAX - 1),
        ] {
            let text = id.to_string();
            assert_eq!(text.len(), 32);
            assert_eq!(text.parse::<MessageId>().unwrap(), id);
            assert_eq!(text.to_uppercase().parse::<MessageId>().unwrap(), id);
        }
        assert_eq!(
            format!("{:?}", MessageId::new(0x1040, 0xabc)),
            "MessageId(00000000000010400000000000000abc)"
        );
    }

    #[test]
    fn model_13_other_text_is_refused() {
        let ok = "0".repeat(32);
        for text in
            ["", "0", &ok[1..], &format!("{ok}0"), &ok.replacen('0', "+", 1), &"\u{e9}".repeat(16)]
        {
            assert!(matches!(text.parse::<MessageId>(), Err(Error::Name { .. })), "{text}");
        }
    }

    #[test]
    fn model_14_ids_of_one_store_sort_by_position_as_text_too() {
        let (older, newer) = (MessageId::new(255, 9), MessageId::new(256, 9));
        assert!(older < newer && older.to_string() < newer.to_string());
        assert_eq!(newer.position(), 256);
    }
}
