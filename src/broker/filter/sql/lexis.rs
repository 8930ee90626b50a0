//! The words of the language (SQL-1), read with winnow: a parser takes one word and the blanks and
//! comments behind it, and fails without a trace if another one stands there.

use super::expression::Expression;
use super::number::Number;
use winnow::combinator::{alt, fail, opt};
use winnow::error::{ErrMode, ParserError};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location, Stateful};
use winnow::token::{one_of, take_till, take_until, take_while};

/// The text that is left.
pub(super) type Input<'t> = Stateful<LocatingSlice<&'t str>, State>;

pub(super) type Read<T> = ModalResult<T, Fault>;

/// What is to be known of the text, besides what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Behind it no line ends, and so no `--` begins a comment: to look for an end from each of
    /// them would take quadratic time.
    last_line_end: usize,
    /// Bytes looked at, counted again if looked at again.
    pub(super) work: usize,
}

/// What is wrong, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) reason: &'static str,
}

impl ParserError<Input<'_>> for Fault {
    type Inner = Self;

    fn from_input(input: &Input<'_>) -> Self {
        Self {
            at: input.current_token_start(),
            reason: "the expression cannot be read from here on",
        }
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

impl Fault {
    /// An error that ends the reading.
    pub(super) fn cut<T>(at: usize, reason: &'static str) -> Read<T> {
        Err(ErrMode::Cut(Self { at, reason }))
    }
}

/// The words that are no property, whatever their case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
}

impl Keyword {
    fn of(word: &str) -> Option<Self> {
        let known = [
            ("NOT", Self::Not),
            ("AND", Self::And),
            ("OR", Self::Or),
            ("BETWEEN", Self::Between),
            ("IN", Self::In),
            ("TRUE", Self::True),
            ("FALSE", Self::False),
            ("NULL", Self::Null),
            ("IS", Self::Is),
            ("CONTAINS", Self::Contains),
            ("STARTSWITH", Self::StartsWith),
            ("ENDSWITH", Self::EndsWith),
        ];
        known.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, keyword)| *keyword)
    }
}

/// All of `text`.
pub(super) fn input(text: &str) -> Input<'_> {
    let last_line_end = text.rfind(LINE_END).unwrap_or(0);
    Stateful { input: LocatingSlice::new(text), state: State { last_line_end, work: 0 } }
}

/// A word made of signs.
pub(super) fn sign<'t>(sign: &'static str) -> impl Parser<Input<'t>, (), ErrMode<Fault>> {
    (sign, blank).void()
}

/// The sign of any comparison, or its beginning.
pub(super) fn comparison(input: &mut Input<'_>) -> Read<()> {
    one_of(['=', '<', '>']).void().parse_next(input)
}

/// `keyword`.
pub(super) fn keyword<'t>(keyword: Keyword) -> impl Parser<Input<'t>, (), ErrMode<Fault>> {
    (word.verify(move |word: &str| Keyword::of(word) == Some(keyword)), blank).void()
}

/// A word that has its meaning only where it is looked for, and is a property elsewhere.
pub(super) fn other_word<'t>(name: &'static str) -> impl Parser<Input<'t>, (), ErrMode<Fault>> {
    (word.verify(move |word: &str| word.eq_ignore_ascii_case(name)), blank).void()
}

/// A property, or one of the constants that look like it.
pub(super) fn property_or_constant(input: &mut Input<'_>) -> Read<Expression> {
    let word = word.parse_next(input)?;
    let expression = match Keyword::of(word) {
        None => Expression::Property(word.into()),
        Some(Keyword::True) => Expression::Truth(Some(true)),
        Some(Keyword::False) => Expression::Truth(Some(false)),
        Some(Keyword::Null) => Expression::Truth(None),
        Some(_) => return fail.parse_next(input),
    };
    blank(input)?;
    Ok(expression)
}

/// A text in quotes, in which two quotes stand for one.
pub(super) fn text(input: &mut Input<'_>) -> Read<Box<str>> {
    let at = input.current_token_start();
    "'".parse_next(input)?;
    let mut text = String::new();
    loop {
        text.push_str(take_till(0.., '\'').parse_next(input)?);
        if opt("'").parse_next(input)?.is_none() {
            return Fault::cut(at, "the text has no closing quote");
        }
        if opt("'").parse_next(input)?.is_none() {
            break;
        }
        text.push('\'');
    }
    input.state.work += text.len();
    blank(input)?;
    Ok(text.into())
}

/// A number without a sign. The one behind the largest i64 is read as the smallest, which it is
/// behind a minus.
pub(super) fn number(input: &mut Input<'_>) -> Read<Number> {
    let at = input.current_token_start();
    let number = match opt(fraction.take()).parse_next(input)? {
        Some(text) => {
            let value: f64 = text.parse().unwrap_or(f64::INFINITY);
            let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
            if value.is_infinite() {
                return Fault::cut(at, "the number is too large for 64 bits");
            }
            if value == 0.0 && mantissa.contains(|c| matches!(c, '1'..='9')) {
                return Fault::cut(at, "the number is too small for 64 bits");
            }
            Number::Double(value)
        }
        None => {
            let text = whole.parse_next(input)?;
            match text.parse::<u64>() {
                Ok(value) if value <= 1 << 63 => Number::whole(value.cast_signed()),
                _ => return Fault::cut(at, "the number is too large for 64 bits"),
            }
        }
    };
    blank(input)?;
    Ok(number)
}

/// The number behind the largest i64.
pub(super) fn is_beyond(expression: &Expression) -> bool {
    *expression == Expression::Number(Number::Long(i64::MIN))
}

fn fraction(input: &mut Input<'_>) -> Read<()> {
    let exponent = || (one_of(['e', 'E']), opt(one_of(['+', '-'])), digits(1));
    alt((
        (digits(1), ".", digits(0), opt(exponent())).void(),
        (".", digits(1), opt(exponent())).void(),
        (digits(1), exponent()).void(),
    ))
    .parse_next(input)
}

/// Its digits; a zero has no other digits behind it, and no `L`.
fn whole<'t>(input: &mut Input<'t>) -> Read<&'t str> {
    let others = (one_of('1'..='9'), digits(0)).take();
    alt(("0", (others, opt(one_of(['l', 'L']))).map(|(digits, _)| digits))).parse_next(input)
}

fn digits<'t>(least: usize) -> impl Parser<Input<'t>, &'t str, ErrMode<Fault>> {
    move |input: &mut Input<'t>| {
        let digits = take_while(least.., '0'..='9').parse_next(input)?;
        input.state.work += digits.len();
        Ok(digits)
    }
}

fn word<'t>(input: &mut Input<'t>) -> Read<&'t str> {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '$';
    let goes_on = move |c: char| begins(c) || c.is_ascii_digit();
    let word = (one_of(begins), take_while(0.., goes_on)).take().parse_next(input)?;
    input.state.work += word.len();
    Ok(word)
}

pub(super) fn blank(input: &mut Input<'_>) -> Read<()> {
    let from = input.current_token_start();
    let spaces = take_while(1.., [' ', '\t', '\n', '\r', '\u{c}']).void();
    let mut blank = opt(alt((spaces, line_comment, block_comment)));
    while blank.parse_next(input)?.is_some() {}
    input.state.work += input.current_token_start() - from + 1;
    Ok(())
}

fn line_comment(input: &mut Input<'_>) -> Read<()> {
    if input.current_token_start() >= input.state.last_line_end {
        return fail.parse_next(input);
    }
    let comment = ("--", take_till(0.., LINE_END)).take().parse_next(input)?;
    input.state.work += comment.len();
    one_of(LINE_END).void().parse_next(input)
}

fn block_comment(input: &mut Input<'_>) -> Read<()> {
    let at = input.current_token_start();
    "/*".parse_next(input)?;
    match opt((take_until(0.., "*/"), "*/")).parse_next(input)? {
        Some(_) => Ok(()),
        None => Fault::cut(at, "the comment has no end, `*/`"),
    }
}

/// What is left.
pub(super) fn left<'t>(input: &Input<'t>) -> &'t str {
    *input.input
}

const LINE_END: [char; 2] = ['\n', '\r'];
