//! The grammar (SQL-2), lowest precedence first.
//!
//! ```text
//! any         all { OR all }
//! all         equality { AND equality }
//! equality    comparison { ( = | <> ) comparison | IS [NOT] NULL }
//! comparison  unary { ( > | >= | < | <= ) unary | [NOT] BETWEEN unary AND unary
//!                   | [NOT] IN ( text, .. ) | [NOT] LIKE text [ESCAPE text]
//!                   | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) text }
//! unary       { + | - | NOT } ( ( any ) | text | number | property | TRUE | FALSE | NULL )
//! ```
//!
//! What waits for its right side stands on a stack of its own, not on that of the thread, which a
//! text full of parentheses would exhaust.

use super::expression::{Expression, Link, Order, Place};
use super::lexis::{self, Fault, Input, Keyword, Read, keyword, other_word, sign};
use super::like::Like;
use super::part::Part;
use winnow::combinator::{alt, opt, peek, separated};
use winnow::error::ErrMode;
use winnow::prelude::*;
use winnow::stream::Location;

/// The longest expression, in bytes.
pub(super) const LONGEST: usize = 256 << 10;

/// Reads an expression; says, too, how many bytes that took a look at.
pub(super) fn parse(text: &str) -> (Result<Expression, Fault>, usize) {
    if text.len() > LONGEST {
        let reason = "the expression is longer than 256 KiB";
        return (Err(Fault { at: LONGEST, reason }), 0);
    }
    let mut input = lexis::input(text);
    let read = whole(&mut input).map_err(|error| match error {
        ErrMode::Backtrack(fault) | ErrMode::Cut(fault) => fault,
        ErrMode::Incomplete(_) => Fault { at: text.len(), reason: "the expression has no end" },
    });
    (read, input.state.work)
}

fn whole(input: &mut Input<'_>) -> Read<Expression> {
    lexis::blank(input)?;
    let mut begun = Begun { waiting: Vec::new() };
    loop {
        let value = begun.operand(input)?;
        if let Some(whole) = begun.operators(input, value)? {
            return Ok(*whole.condition()?.expression);
        }
    }
}

/// An expression that has been read in part: what waits for the value that is read next.
struct Begun {
    waiting: Vec<Waiting>,
}

enum Waiting {
    Parenthesis,
    Signs(Signs),
    /// The lower bound.
    Lower {
        of: Part,
        negated: bool,
    },
    /// The upper bound.
    Upper {
        of: Part,
        low: Part,
        negated: bool,
    },
    /// The right side of an operator.
    Right {
        left: Part,
        operator: Operator,
    },
}

/// What stands between two values. Later ones bind tighter.
#[derive(Clone, Copy)]
enum Operator {
    Link(Link),
    Equal { negated: bool },
    Ordered(Order),
}

/// How tight operators bind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Any,
    All,
    Equality,
    Comparison,
}

impl Operator {
    fn level(self) -> Level {
        match self {
            Self::Link(Link::Or) => Level::Any,
            Self::Link(Link::And) => Level::All,
            Self::Equal { .. } => Level::Equality,
            Self::Ordered(_) => Level::Comparison,
        }
    }
}

impl Begun {
    /// Reads a value, and the signs and parentheses before it.
    fn operand(&mut self, input: &mut Input<'_>) -> Read<Part> {
        loop {
            self.waiting.push(Waiting::Signs(signs(input)?));
            if opt(sign("(")).parse_next(input)?.is_none() {
                return value(input);
            }
            self.waiting.push(Waiting::Parenthesis);
        }
    }

    /// Reads what stands behind a value. Returns the whole at the end; `None` before a value.
    fn operators(&mut self, input: &mut Input<'_>, value: Part) -> Read<Option<Part>> {
        let mut value = value;
        loop {
            let Some(bound) = self.bind(input, value)? else { return Ok(None) };
            if let Some(operator) = operator(input)? {
                let left = self.reduce(operator.level(), bound)?;
                self.waiting.push(Waiting::Right { left, operator });
                return Ok(None);
            }
            if let Some((test, negated)) = test_of_value(input)? {
                let of = self.reduce(Level::Comparison, bound)?;
                value = match test {
                    Test::Between => {
                        self.waiting.push(Waiting::Lower { of, negated });
                        return Ok(None);
                    }
                    Test::In => among(input, of, negated)?,
                    Test::Like => like(input, of, negated)?,
                    Test::Find(place) => find(input, of, place, negated)?,
                };
            } else if takes(input, Keyword::Is)? {
                let negated = takes(input, Keyword::Not)?;
                expect(input, keyword(Keyword::Null), "NULL or NOT NULL is expected here")?;
                let of = self.reduce(Level::Equality, bound)?;
                value = of.null_test()?.negated_if(negated)?;
            } else {
                value = self.reduce(Level::Any, bound)?;
                // Only parentheses can wait yet.
                if self.waiting.pop().is_none() {
                    return match lexis::left(input) {
                        "" => Ok(Some(value)),
                        left => Fault::cut(input.current_token_start(), trailing(left)),
                    };
                }
                expect(input, sign(")"), "an operator or `)` is expected here")?;
            }
        }
    }

    /// Gives a value to what waits for it alone. Returns `None` if another one is to follow.
    fn bind(&mut self, input: &mut Input<'_>, value: Part) -> Read<Option<Part>> {
        let mut value = value;
        loop {
            match self.waiting.pop() {
                Some(Waiting::Signs(signs)) => value = signed(input, signs, value)?,
                Some(Waiting::Lower { of, negated }) => {
                    let missing = "AND is expected here, between the two bounds";
                    expect(input, keyword(Keyword::And), missing)?;
                    self.waiting.push(Waiting::Upper { of, low: value, negated });
                    return Ok(None);
                }
                Some(Waiting::Upper { of, low, negated }) => {
                    value = of.between(low, value, negated)?;
                }
                other => {
                    self.waiting.extend(other);
                    return Ok(Some(value));
                }
            }
        }
    }

    /// Gives a value to all operators that bind it no looser than `level`.
    fn reduce(&mut self, level: Level, value: Part) -> Read<Part> {
        let mut right = value;
        let binds = |waiting: &mut Waiting| match waiting {
            Waiting::Right { operator, .. } => operator.level() >= level,
            _ => false,
        };
        while let Some(Waiting::Right { left, operator }) = self.waiting.pop_if(binds) {
            right = match operator {
                Operator::Link(link) => left.join(link, right)?,
                Operator::Equal { negated } => left.equal(right)?.negated_if(negated)?,
                Operator::Ordered(order) => left.ordered(order, right)?,
            };
        }
        Ok(right)
    }
}

fn operator(input: &mut Input<'_>) -> Read<Option<Operator>> {
    let operator = alt((
        sign("=").value(Operator::Equal { negated: false }),
        sign("<>").value(Operator::Equal { negated: true }),
        sign(">=").value(Operator::Ordered(Order::GreaterOrEqual)),
        sign(">").value(Operator::Ordered(Order::Greater)),
        sign("<=").value(Operator::Ordered(Order::LessOrEqual)),
        sign("<").value(Operator::Ordered(Order::Less)),
        keyword(Keyword::And).value(Operator::Link(Link::And)),
        keyword(Keyword::Or).value(Operator::Link(Link::Or)),
    ));
    opt(operator).parse_next(input)
}

/// Whether `word` is next, which is then taken.
fn takes(input: &mut Input<'_>, word: Keyword) -> Read<bool> {
    Ok(opt(keyword(word)).parse_next(input)?.is_some())
}

/// A test of one value that is written behind it.
#[derive(Clone, Copy)]
enum Test {
    Between,
    In,
    Like,
    Find(Place),
}

fn test_of_value(input: &mut Input<'_>) -> Read<Option<(Test, bool)>> {
    let negated = takes(input, Keyword::Not)?;
    match opt(test).parse_next(input)? {
        Some(test) => Ok(Some((test, negated))),
        None if negated => {
            let reason = "BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH is expected here";
            Fault::cut(input.current_token_start(), reason)
        }
        None => Ok(None),
    }
}

fn test(input: &mut Input<'_>) -> Read<Test> {
    alt((
        keyword(Keyword::Between).value(Test::Between),
        keyword(Keyword::In).value(Test::In),
        keyword(Keyword::Contains).value(Test::Find(Place::Anywhere)),
        keyword(Keyword::StartsWith).value(Test::Find(Place::Start)),
        keyword(Keyword::EndsWith).value(Test::Find(Place::End)),
        other_word("LIKE").value(Test::Like),
    ))
    .parse_next(input)
}

fn find(input: &mut Input<'_>, of: Part, place: Place, negated: bool) -> Read<Part> {
    let text = a_text(input)?;
    let Part { at, height, expression: of } = of;
    Part::over(at, height, Expression::Find { place, text, of, negated })
}

fn among(input: &mut Input<'_>, of: Part, negated: bool) -> Read<Part> {
    let property = of.property()?;
    expect(input, sign("("), "a list of texts is expected here, such as ('a', 'b')")?;
    let mut texts: Vec<Box<str>> = separated(1.., a_text, sign(",")).parse_next(input)?;
    expect(input, sign(")"), "`,` or `)` is expected here")?;
    texts.sort_unstable();
    texts.dedup();
    let texts = texts.into();
    Part::over(of.at, of.height, Expression::In { property, texts, negated })
}

fn like(input: &mut Input<'_>, of: Part, negated: bool) -> Read<Part> {
    let property = of.property()?;
    let at = input.current_token_start();
    let pattern = a_text(input)?;
    let escape = match opt(other_word("ESCAPE")).parse_next(input)? {
        Some(()) => {
            let at = input.current_token_start();
            let text = a_text(input)?;
            let mut characters = text.chars();
            match (characters.next(), characters.next()) {
                (Some(escape), None) => Some(escape),
                _ => return Fault::cut(at, "the escape is one character"),
            }
        }
        None => None,
    };
    match Like::parse(&pattern, escape) {
        Ok(pattern) => {
            Part::over(of.at, of.height, Expression::Like { property, pattern, negated })
        }
        Err(reason) => Fault::cut(at, reason),
    }
}

/// The signs before a value. They are counted, not nested: there may be any number of them.
struct Signs {
    at: usize,
    minuses: usize,
    nots: usize,
    /// The last one is a minus.
    minus: bool,
}

fn signs(input: &mut Input<'_>) -> Read<Signs> {
    let at = input.current_token_start();
    let mut signs = Signs { at, minuses: 0, nots: 0, minus: false };
    loop {
        if opt(sign("+")).parse_next(input)?.is_some() {
            signs.minus = false;
        } else if signs.nots == 0 && opt(sign("-")).parse_next(input)?.is_some() {
            (signs.minuses, signs.minus) = (signs.minuses + 1, true);
        } else if takes(input, Keyword::Not)? {
            signs.nots += 1;
        } else {
            return Ok(signs);
        }
    }
}

/// Applies signs to what stands behind them.
fn signed(input: &mut Input<'_>, signs: Signs, of: Part) -> Read<Part> {
    let Signs { at, minuses, nots, minus } = signs;
    let odd = minuses % 2 == 1;
    if lexis::is_beyond(&of.expression) && !(minus && odd) {
        return Fault::cut(of.at, "the number is too large for 64 bits");
    }
    let mut part = Part { at, ..of };
    if nots > 0 {
        part = part.condition()?;
        if compares(input)? {
            let reason = "NOT takes only what stands next to it, not the comparison as in standard \
                          SQL: write NOT ( .. ) for that, or (NOT ..)";
            return Fault::cut(at, reason);
        }
    }
    for _ in 0..nots {
        part = part.negated_if(true)?;
    }
    if minuses == 0 {
        return Ok(part);
    }
    let Part { height, expression: of, .. } = part;
    Part::over(at, height, Expression::Minus { odd, of })
}

/// Whether a comparison is next, of whichever kind.
fn compares(input: &mut Input<'_>) -> Read<bool> {
    let kinds = (lexis::comparison, keyword(Keyword::Is), keyword(Keyword::Not), test.void());
    Ok(peek(opt(alt(kinds))).parse_next(input)?.is_some())
}

fn value(input: &mut Input<'_>) -> Read<Part> {
    let at = input.current_token_start();
    let value = alt((
        lexis::number.map(Expression::Number),
        lexis::text.map(Expression::Text),
        lexis::property_or_constant,
    ));
    let expression = Box::new(expect(input, value, A_VALUE)?);
    Ok(Part { at, height: 0, expression })
}

/// Reads what has to stand here.
fn expect<'t, T>(
    input: &mut Input<'t>,
    mut parser: impl Parser<Input<'t>, T, ErrMode<Fault>>,
    reason: &'static str,
) -> Read<T> {
    let at = input.current_token_start();
    parser.parse_next(input).map_err(|error| match error {
        ErrMode::Backtrack(_) => {
            let left = lexis::left(input);
            ErrMode::Cut(Fault { at, reason: foreign(left).unwrap_or(reason) })
        }
        cut => cut,
    })
}

fn a_text(input: &mut Input<'_>) -> Read<Box<str>> {
    expect(input, lexis::text, "a text in single quotes is expected here")
}

const A_VALUE: &str =
    "a value is expected here: a property, a number, a text in single quotes, TRUE, FALSE or NULL";

/// What is wrong with what stands behind the expression (SQL-3).
fn trailing(left: &str) -> &'static str {
    let reason = match left.as_bytes() {
        [b')', ..] => "there is no parenthesis that this one closes",
        [b'-' | b'+', ..] => NO_ARITHMETIC,
        _ => "AND, OR, a comparison or the end is expected here",
    };
    foreign(left).unwrap_or(reason)
}

/// What to write in the place of what is no word of this language.
fn foreign(left: &str) -> Option<&'static str> {
    match left.as_bytes() {
        [b'!', b'=', ..] => Some("write <> for not equal"),
        [b'=', ..] => Some("write = once for equal, and <=, >= and <> in one piece"),
        [b'"' | b'`', ..] => Some("write texts in single quotes, and properties in none"),
        [b'*' | b'/' | b'%', ..] => Some(NO_ARITHMETIC),
        [b'|', b'|', ..] => Some("texts cannot be joined; write OR for conditions"),
        [b'&', b'&', ..] => Some("write AND"),
        _ => None,
    }
}

const NO_ARITHMETIC: &str = "there is no arithmetic in this language";
