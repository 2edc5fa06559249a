//! Typed values of a deck: parsed once, printed as they were written.
//!
//! Must not know: the keys that have them (`mod.rs` defines those).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Deref, Range};
use std::str::FromStr;
use std::time::Duration;

/// A value and the text it was parsed from.
#[derive(Debug, Clone)]
pub struct Written<T> {
    text: String,
    value: T,
}

impl<T> Written<T> {
    /// In the deck's syntax.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl<T> Deref for Written<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Written<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T: FromStr> FromStr for Written<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        Ok(Written { text: text.into(), value: text.parse()? })
    }
}

impl<T> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A duration in common and Slurm syntax: `5400`, `90m`, `1h30m`, `2d`, `1:30:00`, `2-12:00:00`; empty or
/// zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeLimit(pub Option<Duration>);

impl TimeLimit {
    /// In seconds, if set.
    pub fn seconds(self) -> Option<f64> {
        self.0.map(|limit| limit.as_secs_f64())
    }
}

impl FromStr for TimeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = seconds(text.trim()).ok_or_else(|| format!("`{text}` is not a duration"))?;
        Ok(TimeLimit((seconds > 0).then(|| Duration::from_secs(seconds))))
    }
}

fn seconds(text: &str) -> Option<u64> {
    if text.contains([':', '-']) {
        return clock_seconds(text);
    }
    let mut seconds = 0;
    let mut digits = String::new();
    let mut smallest = u64::MAX;
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            'd' => 86_400,
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        // Larger units first, each once.
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        seconds += u64::from(std::mem::take(&mut digits).parse::<u32>().ok()?) * unit;
    }
    match digits.as_str() {
        "" => Some(seconds),
        bare if smallest == u64::MAX => bare.parse::<u32>().ok().map(u64::from),
        _ => None,
    }
}

/// Seconds of Slurm's `[days-]hours:minutes[:seconds]`; two fields without days are minutes and seconds.
pub fn clock_seconds(text: &str) -> Option<u64> {
    let number = |field: &str| field.parse::<u32>().ok().map(u64::from);
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let fields: Vec<u64> = clock.split(':').map(number).collect::<Option<_>>()?;
    let (h, m, s) = match (days, fields.as_slice()) {
        (_, &[h, m, s]) => (h, m, s),
        (Some(_), &[h, m]) => (h, m, 0),
        (Some(_), &[h]) => (h, 0, 0),
        (None, &[m, s]) => (0, m, s),
        _ => return None,
    };
    Some(days.unwrap_or(0) * 86_400 + h * 3600 + m * 60 + s)
}

/// Steps: `A`, `A..B` (B excluded) or `A..=B`; empty = none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepSet(Range<u64>);

impl StepSet {
    /// Whether `step` is one of them.
    pub fn contains(&self, step: u64) -> bool {
        self.0.contains(&step)
    }

    /// Whether `step` is the last of them.
    pub fn ends_with(&self, step: u64) -> bool {
        step + 1 == self.0.end
    }
}

impl FromStr for StepSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(StepSet::default());
        }
        let number =
            |part: &str| part.trim().parse::<u64>().map_err(|_| format!("`{text}` is not A, A..B or A..=B"));
        let range = if let Some((from, to)) = text.split_once("..=") {
            number(from)?..number(to)?.saturating_add(1)
        } else if let Some((from, to)) = text.split_once("..") {
            number(from)?..number(to)?
        } else {
            let step = number(text)?;
            step..step.saturating_add(1)
        };
        if range.is_empty() { Err(format!("`{text}` contains no step")) } else { Ok(StepSet(range)) }
    }
}

/// Signals that can request a stop, by the names of `kill -l`. USR2 requests a report, KILL and STOP cannot
/// be caught.
pub const STOP_SIGNALS: [(&str, libc::c_int); 7] = [
    ("TERM", libc::SIGTERM),
    ("USR1", libc::SIGUSR1),
    ("INT", libc::SIGINT),
    ("HUP", libc::SIGHUP),
    ("QUIT", libc::SIGQUIT),
    ("XCPU", libc::SIGXCPU),
    ("URG", libc::SIGURG),
];

/// Numbers of signals out of [`STOP_SIGNALS`], by names with or without SIG, separated by commas; empty =
/// none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SignalSet(pub Vec<libc::c_int>);

impl FromStr for SignalSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let number = |name: &str| {
            let bare = name.strip_prefix("SIG").unwrap_or(name);
            let found = STOP_SIGNALS.iter().find(|s| s.0 == bare);
            found
                .map(|s| s.1)
                .ok_or_else(|| format!("`{name}` is not one of {}", STOP_SIGNALS.map(|s| s.0).join(", ")))
        };
        names.map(number).collect::<Result<_, _>>().map(SignalSet)
    }
}

/// Ordinals of devices, separated by commas; empty = unspecified.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceList(pub Vec<usize>);

impl FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split(',').filter(|_| !text.is_empty());
        let number = |word: &str| {
            let ordinal = word.trim().parse::<u16>().map(usize::from);
            ordinal.map_err(|_| format!("`{word}` is not the ordinal of a device"))
        };
        words.map(number).collect::<Result<_, _>>().map(DeviceList)
    }
}

/// Whether a text can be parsed as `T`.
pub(super) fn is_a<T: FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_people_and_slurm_write_them() {
        for (text, seconds) in [
            ("90", 90),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("45s", 45),
            ("1:30:00", 5400),
            ("30:00", 1800),
            ("1-12:00:00", 129_600),
            ("1-12", 129_600),
        ] {
            assert_eq!(text.parse(), Ok(TimeLimit(Some(Duration::from_secs(seconds)))), "{text}");
        }
        for none in ["", "0", "0s", "0:00"] {
            assert_eq!(none.parse(), Ok(TimeLimit(None)), "{none}");
        }
        for bad in ["soon", "1h30", "30m1h", "h", "-5", "1:2:3:4", "1.5h", "UNLIMITED"] {
            assert!(!is_a::<TimeLimit>(bad), "{bad}");
        }
    }

    #[test]
    fn steps_are_named_in_three_ways() {
        let steps = |text: &str| text.parse::<StepSet>().map(|set| set.0);
        assert_eq!(steps(""), Ok(0..0));
        assert_eq!(steps("7"), Ok(7..8));
        assert_eq!(steps("10..12"), Ok(10..12));
        assert_eq!(steps("10..=12"), Ok(10..13));
        for bad in ["x", "3..3", "5..2", "1...2", "-1"] {
            assert!(steps(bad).is_err(), "{bad}");
        }
        let set: StepSet = "10..=12".parse().unwrap();
        assert_eq!(
            (9..14).map(|step| set.contains(step)).collect::<Vec<_>>(),
            [false, true, true, true, false]
        );
        assert_eq!((9..14).filter(|&step| set.ends_with(step)).collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn signals_go_by_name() {
        let signals = |text: &str| text.parse::<SignalSet>().map(|set| set.0);
        assert_eq!(signals("TERM, SIGUSR1"), Ok(vec![libc::SIGTERM, libc::SIGUSR1]));
        assert_eq!(signals(""), Ok(Vec::new()));
        for bad in ["USR2", "KILL", "TERM,", "term"] {
            assert!(signals(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_printed_as_it_was_written() {
        let devices: Written<DeviceList> = "0, 1".parse().unwrap();
        assert_eq!((devices.0.as_slice(), devices.text()), ([0, 1].as_slice(), "0, 1"));
        let printed = toml::Value::try_from(&devices).unwrap();
        assert_eq!(printed, toml::Value::String("0, 1".into()));
        assert_eq!(printed.try_into::<Written<DeviceList>>().unwrap(), devices);
        assert!(toml::Value::String("0,,1".into()).try_into::<Written<DeviceList>>().is_err());
    }
}
