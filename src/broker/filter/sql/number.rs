//! Numbers as the expressions and the properties write them (SQL-5, SQL-8).
//!
//! The text of a property is read by the rules of Java's `Integer`, `Long` and `Double`, since
//! those decide what matches: whole numbers take a sign and digits of any script, nothing else.

use super::fraction::fraction;
use std::cmp::Ordering;

/// A number; its kind decides how a text that it meets is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i32),
    Long(i64),
    Double(f64),
}

impl Number {
    /// The smallest kind that takes a whole number (SQL-5).
    pub(super) fn whole(value: i64) -> Self {
        i32::try_from(value).map_or(Self::Long(value), Self::Int)
    }

    /// Reads `text` as a number of this one's kind (SQL-8).
    pub(super) fn read_alike(self, text: &str) -> Option<Self> {
        match self {
            Self::Int(_) => i32::try_from(whole(text)?).ok().map(Self::Int),
            Self::Long(_) => whole(text).map(Self::Long),
            Self::Double(_) => fraction(text).map(Self::Double),
        }
    }

    /// Turns the sign round; the smallest whole numbers stay as they are, as in Java.
    pub(super) fn negate(self) -> Self {
        match self {
            Self::Int(value) => Self::Int(value.wrapping_neg()),
            Self::Long(value) => Self::Long(value.wrapping_neg()),
            Self::Double(value) => Self::Double(-value),
        }
    }

    /// Compares, widening the narrower kind.
    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Double(a), b) => compare(a, b.widest()),
            (a, Self::Double(b)) => compare(a.widest(), b),
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            (Self::Int(a), Self::Long(b)) => i64::from(a).cmp(&b),
            (Self::Long(a), Self::Int(b)) => a.cmp(&i64::from(b)),
            (Self::Long(a), Self::Long(b)) => a.cmp(&b),
        }
    }

    fn widest(self) -> f64 {
        match self {
            Self::Int(value) => value.into(),
            Self::Long(value) => value as f64,
            Self::Double(value) => value,
        }
    }
}

/// Equal are numbers of one kind and value: `1` and `1.0` read texts differently.
impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Long(a), Self::Long(b)) => a == b,
            (Self::Double(a), Self::Double(b)) => compare(*a, *b).is_eq(),
            _ => false,
        }
    }
}

impl Eq for Number {}

/// The order of Java's `Double`: minus zero before zero, and one NaN behind everything.
pub(super) fn compare(a: f64, b: f64) -> Ordering {
    let bits = |value: f64| if value.is_nan() { f64::NAN.abs() } else { value }.to_bits();
    match a.partial_cmp(&b) {
        Some(order @ (Ordering::Less | Ordering::Greater)) => order,
        _ => bits(a).cast_signed().cmp(&bits(b).cast_signed()),
    }
}

/// Reads a whole number of 64 bits.
fn whole(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    // Below zero there is one number more.
    let add = |value: i64, c| value.checked_mul(10)?.checked_sub(digit(c)?);
    let negated = digits.chars().try_fold(0, add)?;
    if negative { Some(negated) } else { negated.checked_neg() }
}

/// The value of a decimal digit of any script; Java looks at 16 bits at a time, so that digits
/// beyond count for none.
fn digit(c: char) -> Option<i64> {
    if c.is_ascii() {
        return c.to_digit(10).map(i64::from);
    }
    let code = u32::from(c);
    let zeros = ZEROS.iter().map(|zero| u32::from(*zero));
    let zero = zeros.take_while(|zero| *zero <= code).last()?;
    (code - zero < 10).then(|| i64::from(code - zero))
}

/// The digit 0 of every script that has decimal digits of 16 bits, but for ASCII.
const ZEROS: [u16; 36] = [
    0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66,
    0x0de6, 0x0e50, 0x0ed0, 0x0f20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_8_whole_numbers_are_read_as_java_reads_them() {
        for (text, value) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("-0", Some(0)),
            ("0005", Some(5)),
            ("\u{665}", Some(5)),
            ("-\u{ff15}\u{96a}7", Some(-547)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999999999999", None),
            ("", None),
            ("+", None),
            ("-", None),
            ("--5", None),
            (" 5", None),
            ("5 ", None),
            ("5.0", None),
            ("5L", None),
            ("1_0", None),
            ("0x5", None),
            ("\u{4e94}", None),
            ("\u{1d7d3}", None),
            ("\u{66a}", None),
        ] {
            assert_eq!(whole(text), value, "{text:?}");
        }
        let int = Number::Int(0);
        assert_eq!(int.read_alike("2147483648"), None);
        assert_eq!(int.read_alike("-2147483648"), Some(Number::Int(i32::MIN)));
        assert_eq!(Number::Long(0).read_alike("2147483648"), Some(Number::Long(1 << 31)));
    }

    #[test]
    fn sql_8_the_digits_of_every_script_run_from_their_zero() {
        assert!(ZEROS.is_sorted());
        for zero in ZEROS {
            for value in 0..10 {
                let c = char::from_u32(u32::from(zero) + value).unwrap();
                assert!(c.is_numeric(), "{c:?}");
                assert_eq!(digit(c), Some(i64::from(value)), "{c:?}");
            }
        }
    }

    #[test]
    fn sql_8_numbers_are_widened_to_be_compared() {
        use Number::{Double, Int, Long};
        for (a, b, order) in [
            (Int(1), Long(1), Ordering::Equal),
            (Int(1), Double(1.0), Ordering::Equal),
            (Long(1 << 53), Double(9_007_199_254_740_992.0), Ordering::Equal),
            (Int(i32::MAX), Long(1 << 31), Ordering::Less),
            (Double(-0.0), Double(0.0), Ordering::Less),
            (Double(-0.0), Int(0), Ordering::Less),
            (Double(f64::NAN), Double(f64::INFINITY), Ordering::Greater),
            (Double(-f64::NAN), Double(f64::NAN), Ordering::Equal),
        ] {
            assert_eq!(a.compare(b), order, "{a:?} {b:?}");
            assert_eq!(b.compare(a), order.reverse(), "{b:?} {a:?}");
        }
        assert_ne!(Int(1), Double(1.0));
        assert_eq!(Long(i64::MIN).negate(), Long(i64::MIN));
    }
}
