//! What has been read of an expression, and what may be done with it (SQL-4..9).

use super::expression::{Expression, Link, Order};
use super::lexis::{Fault, Read};

/// The deepest nesting of operators.
pub(super) const DEEPEST: usize = 256;

/// An expression that has been read, where it begins, and the height of its tree.
pub(super) struct Part {
    pub(super) at: usize,
    pub(super) height: usize,
    pub(super) expression: Box<Expression>,
}

impl Part {
    /// An expression over parts of this height.
    pub(super) fn over(at: usize, height: usize, expression: Expression) -> Read<Self> {
        if height >= DEEPEST {
            return Fault::cut(at, "operators are nested deeper than 256 times");
        }
        Ok(Self { at, height: height + 1, expression: Box::new(expression) })
    }

    /// The part as a condition (SQL-4): a property is one, a text or a number is none.
    pub(super) fn condition(self) -> Read<Self> {
        let fits = self.expression.is_condition();
        if fits || matches!(*self.expression, Expression::Property(_)) {
            return Ok(self);
        }
        Fault::cut(self.at, "a condition is expected here, not a value; compare it with something")
    }

    /// Conditions that are joined, in a chain that grows at its end.
    pub(super) fn join(self, link: Link, right: Self) -> Read<Self> {
        let (left, right) = (self.condition()?, right.condition()?);
        match *left.expression {
            Expression::Chain(same, mut parts) if same == link => {
                parts.push(*right.expression);
                let height = right.height.max(left.height - 1);
                Self::over(left.at, height, Expression::Chain(link, parts))
            }
            other => {
                let height = left.height.max(right.height);
                let parts = vec![other, *right.expression];
                Self::over(left.at, height, Expression::Chain(link, parts))
            }
        }
    }

    pub(super) fn property(&self) -> Read<Box<str>> {
        match &*self.expression {
            Expression::Property(name) => Ok(name.clone()),
            _ => Fault::cut(self.at, "IN and LIKE need a property on their left"),
        }
    }

    pub(super) fn null_test(self) -> Read<Self> {
        Self::over(self.at, self.height, Expression::IsNull(self.expression))
    }

    pub(super) fn equal(self, right: Self) -> Read<Self> {
        for side in [&self, &right] {
            if *side.expression == Expression::Truth(None) {
                return Fault::cut(side.at, "NULL equals nothing; write IS NULL or IS NOT NULL");
            }
        }
        let is_truth = |side: &Expression| matches!(side, Expression::Truth(_));
        if is_truth(&self.expression)
            && right.expression.is_literal()
            && !is_truth(&right.expression)
        {
            return Fault::cut(right.at, "TRUE and FALSE can be compared with conditions only");
        }
        let height = self.height.max(right.height);
        Self::over(self.at, height, Expression::Equal([self.expression, right.expression]))
    }

    /// Refuses what has no order (SQL-7).
    pub(super) fn check_order(&self) -> Read<()> {
        match &*self.expression {
            Expression::Text(_) => {}
            other if other.is_condition() => {}
            _ => return Ok(()),
        }
        Fault::cut(self.at, "only numbers and properties have an order")
    }

    pub(super) fn ordered(self, order: Order, right: Self) -> Read<Self> {
        self.check_order()?;
        right.check_order()?;
        let height = self.height.max(right.height);
        Self::over(self.at, height, Expression::Ordered(order, [self.expression, right.expression]))
    }

    pub(super) fn between(self, low: Self, high: Self, negated: bool) -> Read<Self> {
        for part in [&self, &low, &high] {
            part.check_order()?;
        }
        if let (Expression::Number(least), Expression::Number(most)) =
            (&*low.expression, &*high.expression)
            && !negated
            && least.compare(*most).is_gt()
        {
            return Fault::cut(low.at, "the lower bound is above the upper one");
        }
        let (at, height) = (self.at, self.height.max(low.height).max(high.height));
        let parts = [self, low, high].map(|part| part.expression);
        Self::over(at, height, Expression::Between { parts, negated })
    }

    /// The contrary of a condition, if that is what is meant. Of a contrary it is the condition
    /// itself, unless that is a property, which is a condition only where it has to be.
    pub(super) fn negated_if(self, negated: bool) -> Read<Self> {
        if !negated {
            return Ok(self);
        }
        let Self { at, height, expression } = self;
        match *expression {
            Expression::Not(expression) if expression.is_condition() => {
                Ok(Self { at, height: height - 1, expression })
            }
            other => Self::over(at, height, Expression::Not(Box::new(other))),
        }
    }
}
