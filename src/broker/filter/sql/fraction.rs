//! Numbers with a fraction, by the rules of Java's `Double` (SQL-8): with blanks around them, an
//! exponent, a last `f` or `d`, in hexadecimal digits, `NaN` and `Infinity`.

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
}
