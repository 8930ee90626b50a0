//! Numbers as the expressions and the properties write them (SQL-5, SQL-8).
//!
//! The text of a property is read by the rules of Java's `Integer`, `Long` and `Double`, since
//! those decide what matches: whole numbers take a sign and digits of any script, nothing else;
//! fractions also take blanks around them, an exponent, `NaN`, `Infinity`, hexadecimal digits and
//! a last `f` or `d`.

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

/// Reads a number of 64 bits with a fraction, rounded to the nearest.
pub(super) fn fraction(text: &str) -> Option<f64> {
    let text = text.trim_matches(|c| c <= ' ');
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    let magnitude = match digits {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => {
            let number = digits.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(digits);
            match number.strip_prefix("0x").or_else(|| number.strip_prefix("0X")) {
                Some(number) => hexadecimal(number)?,
                None => decimal(number)?,
            }
        }
    };
    Some(sign * magnitude)
}

fn decimal(text: &str) -> Option<f64> {
    // Rust's own names of infinity and NaN, and a second sign, are none of Java's.
    let plain = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if plain { text.parse().ok() } else { None }
}

/// Reads what stands behind `0x`: digits, perhaps a point among them, and a binary exponent.
fn hexadecimal(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    // A point needs digits before or behind it.
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (mut mantissa, mut scale, mut inexact) = (0_u64, 0_i64, false);
    for (behind, c) in whole.chars().map(|c| (0, c)).chain(fraction.chars().map(|c| (1, c))) {
        let digit = c.to_digit(16)?;
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | u64::from(digit);
            scale -= 4 * behind;
        } else {
            inexact |= digit != 0;
            scale += 4 * (1 - behind);
        }
    }
    let unsigned = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Whatever is beyond the range of 32 bits is as large or as small as can be.
    let most = unsigned.parse::<i32>().unwrap_or(i32::MAX);
    let power = i64::from(if exponent.starts_with('-') { -most } else { most });
    Some(scaled(mantissa, inexact, scale + power))
}

/// `mantissa` times two to the `power`, rounded to the nearest, to even in the middle; something
/// is left out behind the mantissa if it is `inexact`.
fn scaled(mantissa: u64, inexact: bool, power: i64) -> f64 {
    if mantissa == 0 {
        return 0.0;
    }
    let shift = mantissa.leading_zeros();
    let (mantissa, power) = (mantissa << shift, power - i64::from(shift));
    let top = power + 63;
    if top > 1023 {
        return f64::INFINITY;
    }
    // Numbers below the normal ones have fewer bits.
    let kept = if top >= -1022 { 53 } else { 53 - (-1022 - top) };
    if kept < 0 {
        return 0.0;
    }
    let (left, dropped) = (u128::from(mantissa) << 64, 128 - kept as u32);
    let (mut rounded, rest) = if dropped == 128 {
        (0, left)
    } else {
        ((left >> dropped) as u64, left & ((1 << dropped) - 1))
    };
    let half = 1_u128 << (dropped - 1);
    if rest > half || (rest == half && (inexact || rounded & 1 == 1)) {
        rounded += 1;
    }
    let unit = top + 1 - kept;
    let power_of_two = if unit >= -1022 {
        f64::from_bits(((unit + 1023) as u64) << 52)
    } else {
        f64::from_bits(1 << (unit + 1074))
    };
    rounded as f64 * power_of_two
}

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
    fn sql_8_fractions_are_read_as_java_reads_them() {
        for (text, value) in [
            ("5", 5.0),
            (" 5\t", 5.0),
            ("\u{0}5\u{1f}", 5.0),
            ("+5.", 5.0),
            (".5", 0.5),
            ("-.5e1", -5.0),
            ("5d", 5.0),
            ("5F", 5.0),
            ("1e400", f64::INFINITY),
            ("-1e99999999999", f64::NEG_INFINITY),
            ("1e-400", 0.0),
            ("Infinity", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0x5p0", 5.0),
            ("0X.8P+1", 1.0),
            ("-0x1.8p1d", -3.0),
            ("0x10.p-4", 1.0),
            ("0x1p99999999999", f64::INFINITY),
            ("0x1p-99999999999", 0.0),
            ("0x0p99999999999", 0.0),
        ] {
            assert_eq!(fraction(text), Some(value), "{text:?}");
        }
        assert!(fraction("NaN").is_some_and(f64::is_nan));
        assert!(fraction("-NaN").is_some_and(f64::is_nan));
        for text in [
            "",
            " ",
            "+",
            ".",
            "e5",
            "5e",
            "5e+",
            "5L",
            "1_0",
            "0x5",
            "0xp1",
            "0x.p1",
            "0x1p",
            "NaNd",
            "nan",
            "inf",
            "infinity",
            "Infinityf",
            "--5",
            "+-5",
            "0x-1p1",
            "5 d",
            "\u{665}",
            "5dd",
            "0x1p1.0",
            "\u{a0}5",
        ] {
            assert_eq!(fraction(text), None, "{text:?}");
        }
    }

    #[test]
    fn sql_8_hexadecimal_fractions_are_rounded_to_the_nearest() {
        for (text, value) in [
            ("0x1.fffffffffffffp1023", f64::MAX),
            ("0x1.fffffffffffff8p1023", f64::INFINITY),
            ("0x1.fffffffffffff7p1023", f64::MAX),
            ("0x1p-1074", f64::from_bits(1)),
            ("0x1p-1075", 0.0),
            ("0x1.8p-1075", f64::from_bits(1)),
            ("0x1.00000000000000000000001p-1075", f64::from_bits(1)),
            ("0x3p-1075", f64::from_bits(2)),
            ("0x1p-1022", f64::MIN_POSITIVE),
            ("0x0.fffffffffffffp-1022", f64::from_bits((1 << 52) - 1)),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000001p0", 1.0 + f64::EPSILON),
            ("0x1.00000000000018p0", 1.0 + 2.0 * f64::EPSILON),
            ("0x123456789abcdef0123p0", 0x0123_4567_89ab_cdef_0123_u128 as f64),
        ] {
            assert_eq!(fraction(text), Some(value), "{text:?}");
        }
        // Where the decimal notation is exact, both must agree.
        for nth in 0..2000_u64 {
            let value = f64::from_bits(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
            let (bits, power) = (value.to_bits() & ((1 << 52) - 1), value.to_bits() >> 52);
            let text = format!("0x1.{bits:013x}p{}", power as i64 - 1023);
            let expected = f64::from_bits(bits | 1023 << 52) * 2_f64.powi(power as i32 - 1023);
            assert_eq!(fraction(&text), Some(expected), "{text}");
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
