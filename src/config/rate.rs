//! The cost of a kernel in a hardware file's syntax: `1.5 us, 210 GFLOP/s, 55 GB/s`.
//!
//! Must not know: which kernels exist.

use std::fmt;
use std::str::FromStr;

/// The time of a kernel call: `launch_s + flops * s_per_flop + bytes * s_per_byte`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rate {
    /// Fixed cost.
    pub launch_s: f64,
    /// Per FLOP.
    pub s_per_flop: f64,
    /// Per byte.
    pub s_per_byte: f64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rate = Rate::default();
        let wrong = || format!("`{text}` is not a combination of us, GFLOP/s and GB/s");
        for part in text.split(',') {
            let (number, unit) = part.trim().split_once(' ').ok_or_else(wrong)?;
            let number: f64 = number.parse().map_err(|_| wrong())?;
            let good = number.is_finite() && number >= 0.0 && (number > 0.0 || unit == "us");
            match unit.trim() {
                _ if !good => return Err(wrong()),
                "us" => rate.launch_s = number / 1e6,
                "GFLOP/s" => rate.s_per_flop = 1e-9 / number,
                "GB/s" => rate.s_per_byte = 1e-9 / number,
                _ => return Err(wrong()),
            }
        }
        Ok(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} us", self.launch_s * 1e6)?;
        for (cost, unit) in [(self.s_per_flop, "GFLOP/s"), (self.s_per_byte, "GB/s")] {
            if cost > 0.0 {
                write!(f, ", {:.4} {unit}", 1e-9 / cost)?;
            }
        }
        Ok(())
    }
}

/// A rate, if measured: empty = not measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredRate(pub Option<Rate>);

impl FromStr for MeasuredRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Ok(MeasuredRate(None))
        } else {
            text.parse().map(|rate| MeasuredRate(Some(rate)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_reads_back_as_it_prints() {
        let rate = Rate { launch_s: 1.5e-6, s_per_flop: 1e-9 / 210.0, s_per_byte: 0.0 };
        assert_eq!(rate.to_string(), "1.500 us, 210.0000 GFLOP/s");
        let back: Rate = rate.to_string().parse().unwrap();
        assert!((back.s_per_flop / rate.s_per_flop - 1.0).abs() < 1e-6 && back.s_per_byte == 0.0);
        for wrong in ["", "fast", "0 GB/s", "-1 us", "1 parsec", "nan us"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
