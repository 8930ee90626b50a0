//! A compiled expression, and what it makes of a message's properties (SQL-4..14).
//!
//! Expressions are trees of bounded height, so that evaluating one neither allocates nor takes
//! much of a stack. Truth has three values: `None` is SQL's unknown. The reference's oddities are
//! kept where a comment names their rule.

use super::super::is_among;
use super::fraction::fraction;
use super::like::Like;
use super::number::{self, Number};
use std::cmp::Ordering;

/// A part of an expression, or all of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expression {
    Property(Box<str>),
    Number(Number),
    Text(Box<str>),
    /// `TRUE`, `FALSE` or `NULL`.
    Truth(Option<bool>),
    /// What it is applied to, once or any odd number of times; or an even number of times.
    Minus {
        odd: bool,
        of: Box<Self>,
    },
    Not(Box<Self>),
    Chain(Link, Vec<Self>),
    Equal([Box<Self>; 2]),
    IsNull(Box<Self>),
    Ordered(Order, [Box<Self>; 2]),
    /// A value and its two bounds.
    Between {
        parts: [Box<Self>; 3],
        negated: bool,
    },
    In {
        property: Box<str>,
        texts: Box<[Box<str>]>,
        negated: bool,
    },
    Find {
        place: Place,
        text: Box<str>,
        of: Box<Self>,
        negated: bool,
    },
    Like {
        property: Box<str>,
        pattern: Like,
        negated: bool,
    },
}

/// What joins conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    And,
    Or,
}

/// How two values are to be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// Where in a text another one is to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    Start,
    End,
}

/// The expression cannot be evaluated for this message, which therefore does not match (FILT-2).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit;

pub(super) type Truth = Result<Option<bool>, Unfit>;

#[derive(Clone, Copy)]
enum Value<'a> {
    Null,
    Truth(bool),
    Number(Number),
    Text(&'a str),
}

impl Expression {
    /// Whether it is a condition, rather than a value.
    pub(super) fn is_condition(&self) -> bool {
        match self {
            Self::Property(_) | Self::Number(_) | Self::Text(_) | Self::Minus { .. } => false,
            Self::Truth(_)
            | Self::Not(_)
            | Self::Chain(..)
            | Self::Equal(_)
            | Self::IsNull(_)
            | Self::Ordered(..)
            | Self::Between { .. }
            | Self::In { .. }
            | Self::Find { .. }
            | Self::Like { .. } => true,
        }
    }

    /// Whether it is written as a constant; a sign makes it none (SQL-9).
    pub(super) fn is_literal(&self) -> bool {
        matches!(self, Self::Number(_) | Self::Text(_) | Self::Truth(_))
    }

    /// Whether it holds for a message whose properties `get` finds.
    pub(super) fn truth<'a>(&'a self, get: &impl Fn(&str) -> Option<&'a str>) -> Truth {
        match self {
            // A text is never true (SQL-4).
            Self::Property(name) => Ok(get(name).map(|_| false)),
            Self::Truth(truth) => Ok(*truth),
            Self::Not(of) => Ok(of.truth(get)?.map(|truth| !truth)),
            Self::Chain(link, parts) => {
                // The value that decides without a look at the rest (SQL-12).
                let decides = *link == Link::Or;
                let mut all = Some(!decides);
                for part in parts {
                    match part.truth(get)? {
                        Some(truth) if truth == decides => return Ok(Some(decides)),
                        Some(_) => {}
                        None => all = None,
                    }
                }
                Ok(all)
            }
            Self::Equal([left, right]) => left.value(get)?.equals(right.value(get)?),
            Self::IsNull(of) => Ok(Some(matches!(of.value(get)?, Value::Null))),
            Self::Ordered(order, [left, right]) => {
                // The right one is not looked at in vain (SQL-7).
                match left.value(get)? {
                    Value::Null => Ok(None),
                    left => left.ordered(*order, right.value(get)?),
                }
            }
            Self::Between { parts: [of, low, high], negated } => {
                let (from, to) = match negated {
                    false => (Order::GreaterOrEqual, Order::LessOrEqual),
                    true => (Order::Less, Order::Greater),
                };
                let of = match of.value(get)? {
                    Value::Null => return Ok(None),
                    value => value,
                };
                let from = of.ordered(from, low.value(get)?)?;
                // As of AND or, if negated, of OR: one of the two may decide (SQL-9).
                let decides = Some(*negated);
                if from == decides {
                    return Ok(decides);
                }
                let to = of.ordered(to, high.value(get)?)?;
                Ok(if to == decides { to } else { from.and(to) })
            }
            Self::In { property, texts, negated } => {
                Ok(get(property).map(|value| is_among(texts, value) != *negated))
            }
            Self::Find { place, text, of, negated } => Ok(Some(match of.value(get)? {
                // Nothing is found in what is no text, nor is it not found (SQL-14).
                Value::Text(value) if !text.is_empty() => place.has(value, text) != *negated,
                _ => false,
            })),
            Self::Like { property, pattern, negated } => {
                Ok(get(property).map(|value| pattern.fits(value) != *negated))
            }
            Self::Number(_) | Self::Text(_) | Self::Minus { .. } => Err(Unfit),
        }
    }

    fn value<'a>(&'a self, get: &impl Fn(&str) -> Option<&'a str>) -> Result<Value<'a>, Unfit> {
        Ok(match self {
            Self::Property(name) => get(name).map_or(Value::Null, Value::Text),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::Text(text),
            // Of anything but a number it is null (SQL-13).
            Self::Minus { odd, of } => match of.value(get)? {
                Value::Number(number) if *odd => Value::Number(number.negate()),
                Value::Number(number) => Value::Number(number),
                _ => Value::Null,
            },
            condition => condition.truth(get)?.map_or(Value::Null, Value::Truth),
        })
    }
}

impl Value<'_> {
    fn equals(self, right: Self) -> Truth {
        Ok(match (self, right) {
            (Self::Null, Self::Null) => Some(true),
            // Lopsided (SQL-6): `a <> b` holds if `b` is missing.
            (Self::Null, _) => None,
            (_, Self::Null) => Some(false),
            (left, right) => Some(left.compare(right)?.is_eq()),
        })
    }

    fn ordered(self, order: Order, right: Self) -> Truth {
        let compared = match (self, right) {
            (_, Self::Null) => return Ok(None),
            // Texts have no order: both must be numbers (SQL-7).
            (Self::Text(left), Self::Text(right)) => {
                let read = |text| fraction(text).ok_or(Unfit);
                number::compare(read(left)?, read(right)?)
            }
            (left, right) => left.compare(right)?,
        };
        Ok(Some(match order {
            Order::Greater => compared.is_gt(),
            Order::GreaterOrEqual => compared.is_ge(),
            Order::Less => compared.is_lt(),
            Order::LessOrEqual => compared.is_le(),
        }))
    }

    /// Compares two values that are not null; a text becomes what it is compared with (SQL-8).
    fn compare(self, right: Self) -> Result<Ordering, Unfit> {
        let read = |number: Number, text| number.read_alike(text).ok_or(Unfit);
        Ok(match (self, right) {
            (Self::Number(left), Self::Number(right)) => left.compare(right),
            (Self::Text(left), Self::Number(right)) => read(right, left)?.compare(right),
            (Self::Number(left), Self::Text(right)) => left.compare(read(left, right)?),
            (Self::Text(left), Self::Text(right)) => left.cmp(right),
            (Self::Truth(left), Self::Truth(right)) => left.cmp(&right),
            (Self::Text(left), Self::Truth(right)) => left.eq_ignore_ascii_case("true").cmp(&right),
            (Self::Truth(_), Self::Text(_)) => return Err(Unfit),
            _ => Ordering::Less,
        })
    }
}

impl Place {
    fn has(self, value: &str, text: &str) -> bool {
        match self {
            Self::Anywhere => value.contains(text),
            Self::Start => value.starts_with(text),
            Self::End => value.ends_with(text),
        }
    }
}
