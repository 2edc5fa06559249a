//! The reference and tolerances of a measurement, in a deck's syntax: `40 -10%`, `2.5 +20%`, `-10%`, `100 -5%
//! +50%`.
//!
//! Must not know: which measurements exist.

use std::str::FromStr;

/// A reference and the tolerated deviations, as fractions of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limit {
    /// The reference; none = a stored baseline's, or theory's.
    pub reference: Option<f64>,
    /// Tolerance below; none = any distance.
    pub low: Option<f64>,
    /// Tolerance above; none = any distance.
    pub high: Option<f64>,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limit = Limit::default();
        for (i, word) in text.split_whitespace().enumerate() {
            let wrong = || format!("`{word}` is neither a reference nor a tolerance such as -10% or +20%");
            let number =
                |digits: &str| digits.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(wrong);
            match word.strip_suffix('%') {
                None if i == 0 => limit.reference = Some(number(word)?),
                None => return Err(wrong()),
                Some(percent) => {
                    let (slot, digits) = match (percent.strip_prefix('-'), percent.strip_prefix('+')) {
                        (Some(digits), _) => (&mut limit.low, digits),
                        (_, Some(digits)) => (&mut limit.high, digits),
                        (None, None) => return Err(wrong()),
                    };
                    let fraction = number(digits)? / 100.0;
                    if fraction < 0.0 || digits.starts_with('+') || slot.replace(fraction).is_some() {
                        return Err(wrong());
                    }
                }
            }
        }
        if limit.reference.is_some() && limit.low.is_none() && limit.high.is_none() {
            return Err(format!("`{text}` has a reference but no tolerance such as -10% or +20%"));
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_tolerances_read_as_written_and_all_else_is_refused() {
        let limit = |text: &str| text.parse::<Limit>();
        assert_eq!(limit(""), Ok(Limit::default()));
        assert_eq!(limit("40 -10%"), Ok(Limit { reference: Some(40.0), low: Some(0.1), high: None }));
        assert_eq!(
            limit(" 2.5e3  +20% -0% "),
            Ok(Limit { reference: Some(2500.0), low: Some(0.0), high: Some(0.2) })
        );
        assert_eq!(limit("-5%"), Ok(Limit { reference: None, low: Some(0.05), high: None }));
        for bad in [
            "40",
            "-10",
            "10%",
            "40 -10% -5%",
            "-10% 40",
            "x -10%",
            "40 --10%",
            "40 -+1%",
            "inf -1%",
            "40 -%",
        ] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
