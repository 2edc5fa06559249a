//! A sweep as a figure. Must not know: how figures are drawn.

use super::Forecast;
use super::sweep::Table;
use crate::error::{Error, Result};
use crate::figures::{Axis, Chart, Figure, LineFigure, Series};

impl Table {
    /// Step time and its parts, over the values.
    ///
    /// # Errors
    /// The values are not positive numbers, or none could be planned.
    pub fn figure(&self, hardware: &str, measured: bool) -> Result<Figure> {
        let planned: Option<Vec<(f64, &Forecast)>> = self
            .planned()
            .map(|(value, f)| Some((value.parse().ok().filter(|x: &f64| *x > 0.0)?, f)))
            .collect();
        let Some(mut points) = planned.filter(|points| !points.is_empty()) else {
            return Err(Error::Input(format!(
                "--figure: the values of {} that can be planned are not positive numbers; --csv accepts any",
                self.key
            )));
        };
        // A list may be in any order.
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let over = |ms: fn(&Forecast) -> f64| points.iter().map(|(x, f)| (*x, 1e3 * ms(f))).collect();
        let x = Axis::new(self.key.clone()).log();
        let x = if self.key.starts_with("ranks") || self.key.ends_with("_size") { x.count() } else { x };
        let basis = if measured {
            "measured by --calibrate"
        } else {
            "from data sheets and assumptions, not verified"
        };
        let figure = LineFigure {
            name: "sweep".into(),
            title: format!("Predicted step over {}, {hardware}", self.key),
            subtitle: format!("milliseconds; hardware figures {basis}"),
            caption: format!(
                "Kernels and collectives alone, the exposed part of the collectives, and the whole step; \
                 hardware figures are {basis}."
            ),
            chart: Chart {
                x,
                y: Axis::new("ms").log(),
                series: vec![
                    Series::line("compute", 0, over(|f| f.compute_s)),
                    Series::line("all-gathers", 1, over(|f| f.gather_s)),
                    Series::line("reductions", 2, over(|f| f.reduce_s)),
                    Series::line("exposed", 3, over(|f| f.exposed_comm_s)),
                    Series { color: None, ..Series::line("step", 0, over(|f| f.step_s)) },
                ],
                marks: Vec::new(),
            },
        };
        Ok(figure.draw())
    }
}
