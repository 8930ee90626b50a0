//! SQL92 expressions over a message's properties (SQL-1..17).
//!
//! ```text
//! grammar(part clause signs)(expect lexis)   text to expression, with winnow; errors know their place
//! expression                                 evaluated on encoded properties, without allocating
//! number(fraction) like                      how texts become numbers, and fit patterns
//! ```
//!
//! The results are RocketMQ's, recorded in `tests/vectors/sql92.json`, oddities included: only a
//! few of them, which would pass unnoticed, are errors here (docs/design.md).

mod clause;
mod expect;
mod expression;
mod fraction;
mod grammar;
mod lexis;
mod like;
mod number;
mod part;
mod signs;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::properties::Properties;
use expression::Expression;
use lexis::Fault;
use std::fmt;

/// An expression, compiled once and shared by all who apply it.
#[derive(Debug)]
pub(super) struct Sql {
    text: Box<str>,
    expression: Expression,
}

impl Sql {
    /// # Errors
    /// `Sql`, with the place and the reason.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let (read, _) = grammar::parse(text);
        let expression = read.map_err(|fault| error(text, fault))?;
        Ok(Self { text: text.into(), expression })
    }

    /// Whether the expression is true for a message; unknown is not, and neither is what cannot
    /// be evaluated (FILT-2).
    pub(super) fn matches(&self, properties: Properties<'_>) -> bool {
        self.expression.truth(&|name| properties.get(name)) == Ok(Some(true))
    }
}

/// Equal are expressions that say the same, whatever their blanks, comments and parentheses.
impl PartialEq for Sql {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression
    }
}

impl Eq for Sql {}

impl fmt::Display for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Shows the line of the fault, as much of it as fits a terminal.
fn error(text: &str, Fault { at, reason }: Fault) -> Error {
    const BEFORE: usize = 60;
    const BEHIND: usize = 40;
    let ends_line = |c| matches!(c, '\n' | '\r');
    let position = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let (before, behind) = text.split_at(position);
    let before = before.rsplit(ends_line).next().unwrap_or_default();
    let length = before.chars().count();
    let shown = before.chars().skip(length.saturating_sub(BEFORE));
    let behind = behind.chars().take_while(|c| !ends_line(*c)).take(BEHIND);
    // What has no width would move the caret.
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let line = shown.chain(behind).map(plain).collect();
    Error::Sql { line, column: length.min(BEFORE), position, reason }
}
