//! Linear warm-up, then a cosine to the smallest learning rate (Loshchilov and Hutter, arXiv:1608.03983).

use crate::config::OptimSection;

/// Learning rate of update `step`, counted from 1.
///
/// Warm-up: `lr * step / warmup_steps` up to `warmup_steps`; then a half cosine from `lr` to `min_lr` that
/// ends at `decay_steps`; `min_lr` after it. The cosine comes from a crate, so that no node's libm shows.
pub fn lr_at(step: u64, o: &OptimSection) -> f64 {
    if step <= o.warmup_steps {
        return o.lr * step as f64 / o.warmup_steps as f64;
    }
    if step >= o.decay_steps || o.decay_steps <= o.warmup_steps {
        return o.min_lr;
    }
    let progress = (step - o.warmup_steps) as f64 / (o.decay_steps - o.warmup_steps) as f64;
    o.min_lr + 0.5 * (o.lr - o.min_lr) * (1.0 + libm::cos(std::f64::consts::PI * progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(warmup: u64, decay: u64) -> OptimSection {
        OptimSection {
            lr: 1.0,
            min_lr: 0.1,
            warmup_steps: warmup,
            decay_steps: decay,
            ..OptimSection::default()
        }
    }

    #[test]
    fn warm_up_is_linear_and_ends_at_lr() {
        let o = section(4, 100);
        assert_eq!((1..=4).map(|s| lr_at(s, &o)).collect::<Vec<_>>(), [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn the_cosine_falls_to_min_lr_and_stays() {
        let o = section(0, 10);
        let all: Vec<f64> = (1..=12).map(|s| lr_at(s, &o)).collect();
        assert!(all.windows(2).all(|w| w[1] <= w[0]));
        assert!((lr_at(5, &o) - 0.55).abs() < 1e-12);
        assert_eq!(&all[9..], [0.1, 0.1, 0.1]);
    }

    #[test]
    fn warm_up_may_be_longer_than_the_decay() {
        let o = section(20, 10);
        assert_eq!(lr_at(10, &o), 0.5);
        assert_eq!(lr_at(20, &o), 1.0);
        assert_eq!(lr_at(21, &o), 0.1);
    }
}
