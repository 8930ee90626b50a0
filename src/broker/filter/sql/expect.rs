//! What has to stand somewhere, and what is wrong if something else does.

use super::lexis::{self, Fault, Input, Keyword, Read, keyword};
use winnow::combinator::opt;
use winnow::error::ErrMode;
use winnow::prelude::*;
use winnow::stream::Location;

/// Whether `word` is next, which is then taken.
pub(super) fn takes(input: &mut Input<'_>, word: Keyword) -> Read<bool> {
    Ok(opt(keyword(word)).parse_next(input)?.is_some())
}

/// Reads what has to stand here.
pub(super) fn expect<'t, T>(
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

/// What is wrong with what stands behind the expression (SQL-3).
pub(super) fn trailing(left: &str) -> &'static str {
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
