//! Tests of one value that are written behind it.

use super::expect::{expect, takes};
use super::expression::{Expression, Place};
use super::lexis::{self, Fault, Input, Keyword, Read, keyword, other_word, sign};
use super::like::Like;
use super::part::Part;
use winnow::combinator::{alt, opt, separated};
use winnow::prelude::*;
use winnow::stream::Location;

/// A test of one value that is written behind it.
#[derive(Clone, Copy)]
pub(super) enum Test {
    Between,
    In,
    Like,
    Find(Place),
}

pub(super) fn test_of_value(input: &mut Input<'_>) -> Read<Option<(Test, bool)>> {
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

pub(super) fn test(input: &mut Input<'_>) -> Read<Test> {
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

pub(super) fn find(input: &mut Input<'_>, of: Part, place: Place, negated: bool) -> Read<Part> {
    let text = a_text(input)?;
    let Part { at, height, expression: of } = of;
    Part::over(at, height, Expression::Find { place, text, of, negated })
}

pub(super) fn among(input: &mut Input<'_>, of: Part, negated: bool) -> Read<Part> {
    let property = of.property()?;
    expect(input, sign("("), "a list of texts is expected here, such as ('a', 'b')")?;
    let mut texts: Vec<Box<str>> = separated(1.., a_text, sign(",")).parse_next(input)?;
    expect(input, sign(")"), "`,` or `)` is expected here")?;
    texts.sort_unstable();
    texts.dedup();
    let texts = texts.into();
    Part::over(of.at, of.height, Expression::In { property, texts, negated })
}

pub(super) fn like(input: &mut Input<'_>, of: Part, negated: bool) -> Read<Part> {
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

fn a_text(input: &mut Input<'_>) -> Read<Box<str>> {
    expect(input, lexis::text, "a text in single quotes is expected here")
}
