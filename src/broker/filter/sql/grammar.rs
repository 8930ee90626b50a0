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

use super::clause::{Test, among, find, like, test_of_value};
use super::expect::{expect, takes, trailing};
use super::expression::{Expression, Link, Order};
use super::lexis::{self, Fault, Input, Keyword, Read, keyword, sign};
use super::part::Part;
use super::signs::{Signs, signed, signs};
use winnow::combinator::{alt, opt};
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

const A_VALUE: &str =
    "a value is expected here: a property, a number, a text in single quotes, TRUE, FALSE or NULL";
