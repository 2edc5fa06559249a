//! Human-readable numbers. Machine-readable logs never use these.

/// `512 B`, `1.5 KiB`, `12.3 MiB`: binary units, one decimal.
pub fn bytes(n_bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n_bytes < 1024 {
        return format!("{n_bytes} B");
    }
    let mut value = n_bytes as f64 / 1024.0;
    let mut unit_idx = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit_idx + 1 < UNITS.len() {
        value /= 1024.0;
        unit_idx += 1;
    }
    format!("{value:.1} {}", UNITS[unit_idx])
}

/// `42s`, `3m07s`, `2h05m`, `4d03h`; `-` for an invalid duration.
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// `950`, `12.3k`, `4.5M`: decimal units.
pub fn count(n: f64) -> String {
    match n {
        n if n < 9_999.5 => format!("{n:.0}"),
        n if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_950_000.0 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

/// `1 rank`, `3 ranks`: for nouns with a regular plural.
pub fn counted(n: usize, word: &str) -> String {
    format!("{n} {}", of_number(n, word))
}

/// `rank` for one, otherwise `ranks`, without the count.
pub fn of_number(n: usize, word: &str) -> String {
    format!("{word}{}", if n == 1 { "" } else { "s" })
}

/// A stage's bytes at rest for `psi` parameters on `n` ranks, `2 x 100 + 14 x 100 / 3 = 666.7`: each rank
/// holds `whole` bytes of every parameter, and its share of `cut`. Zero terms are omitted.
pub fn stage_formula((whole, cut): (usize, usize), psi: u64, n: u64) -> String {
    let terms = [(whole, format!("{whole} x {psi}")), (cut, format!("{cut} x {psi} / {n}"))];
    let terms: Vec<String> =
        terms.into_iter().filter(|(bytes, _)| *bytes > 0).map(|(_, term)| term).collect();
    let sum = whole as f64 * psi as f64 + cut as f64 * psi as f64 / n as f64;
    format!("{} = {sum:.1}", terms.join(" + "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_leaves_out_what_is_nothing() {
        assert_eq!(stage_formula((0, 16), 1000, 3), "16 x 1000 / 3 = 5333.3");
        assert_eq!(stage_formula((2, 14), 100, 3), "2 x 100 + 14 x 100 / 3 = 666.7");
        assert_eq!(stage_formula((16, 0), 100, 3), "16 x 100 = 1600.0");
    }

    #[test]
    fn units_change_without_a_thousand_and_twenty_four_of_the_smaller() {
        let shown = [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "16.0 EiB"]);
        let shown = [0.4, 59.6, 187.0, 7500.0, 356_400.0, f64::NAN, f64::INFINITY, -1.0].map(seconds);
        assert_eq!(shown, ["0s", "1m00s", "3m07s", "2h05m", "4d03h", "-", "-", "-"]);
        assert_eq!([0, 1, 2].map(|n| counted(n, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
        assert_eq!([0, 1, 2].map(|n| of_number(n, "rank")), ["ranks", "rank", "ranks"]);
        assert_eq!([0.0, 9999.4, 12_345.0, 4.5e6, 2e9].map(count), ["0", "9999", "12.3k", "4.5M", "2.0G"]);
    }
}
