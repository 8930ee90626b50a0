//! `+`, `-` and NOT before a value (SQL-2, SQL-13).

use super::clause::test;
use super::expect::takes;
use super::expression::Expression;
use super::lexis::{self, Fault, Input, Keyword, Read, keyword, sign};
use super::part::Part;
use winnow::combinator::{alt, opt, peek};
use winnow::prelude::*;
use winnow::stream::Location;

/// The signs before a value. They are counted, not nested: there may be any number of them.
pub(super) struct Signs {
    at: usize,
    minuses: usize,
    nots: usize,
    /// The last one is a minus.
    minus: bool,
}

pub(super) fn signs(input: &mut Input<'_>) -> Read<Signs> {
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
pub(super) fn signed(input: &mut Input<'_>, signs: Signs, of: Part) -> Read<Part> {
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
