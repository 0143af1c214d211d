//! Quantiles of samples, and how sure a ratio of medians is.

/// The value below which the part `q` (0 to 1) of the samples lies, between two samples by their
/// distance. None without samples.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "thousands of samples at most")]
    let place = q.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last place"
    )]
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    let part = place - place.floor();
    Some(sorted[below] + (sorted[above] - sorted[below]) * part)
}

/// How often a confidence interval's samples are drawn anew.
const RESAMPLES: usize = 1000;
/// Any will do; the same records give the same interval.
const SEED: u64 = 1;

/// One median over another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    /// The 95 % confidence interval; none where either side has a single sample.
    pub(crate) interval: Option<(f64, f64)>,
}

/// Of all rounds' samples together. The interval is a bootstrap's: samples are drawn anew within
/// their rounds, since rounds differ; where a round has one sample only, over the rounds. None
/// where a side has no samples, or the other's median is not above zero.
pub(crate) fn ratio_of_medians(ours: &[Vec<f64>], others: &[Vec<f64>]) -> Option<Ratio> {
    let (our_median, other_median) = (median(&ours.concat())?, median(&others.concat())?);
    if other_median <= 0.0 {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let (ours, others) = (strata(ours), strata(others));
    let is_single = |strata: &[Vec<f64>]| strata.iter().map(Vec::len).sum::<usize>() < 2;
    let interval = if is_single(&ours) || is_single(&others) {
        None
    } else {
        let mut draw = |strata| median(&redraw(strata, &mut random));
        let draws: Vec<_> = (0..RESAMPLES)
            .filter_map(|_| Some(draw(&ours)? / draw(&others)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        quantile(&draws, 0.025).zip(quantile(&draws, 0.975))
    };
    Some(Ratio {
        value: our_median / other_median,
        interval,
    })
}

pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// What is drawn from separately.
fn strata(rounds: &[Vec<f64>]) -> Vec<Vec<f64>> {
    if rounds.iter().all(|round| round.len() < 2) {
        vec![rounds.concat()]
    } else {
        rounds.to_vec()
    }
}

fn redraw(strata: &[Vec<f64>], random: &mut fastrand::Rng) -> Vec<f64> {
    let mut drawn = Vec::new();
    for stratum in strata {
        drawn.extend((0..stratum.len()).map(|_| stratum[random.usize(..stratum.len())]));
    }
    drawn
}

/// The slope of the straight line nearest to the points (least squares). None where they have fewer
/// than two different places.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "tens of points")]
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let common: f64 = points
        .iter()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    (spread > 0.0).then(|| common / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_between_samples() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&samples, 0.0), Some(1.0));
        assert_eq!(quantile(&samples, 0.5), Some(2.5));
        assert_eq!(quantile(&samples, 1.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_ratio_lies_within_its_interval_and_is_the_same_each_time() {
        let ours = [vec![1.0, 1.1, 0.9], vec![1.2, 1.0, 1.1]];
        let others = [vec![10.0, 12.0, 11.0], vec![9.0, 10.0, 11.0]];
        let ratio = ratio_of_medians(&ours, &others).unwrap();
        let (low, high) = ratio.interval.unwrap();
        assert!((ratio.value - 0.1).abs() < 1e-9, "{ratio:?}");
        assert!(low <= ratio.value && ratio.value <= high, "{ratio:?}");
        assert!(low > 0.07 && high < 0.14, "{ratio:?}");
        assert_eq!(ratio_of_medians(&ours, &others), Some(ratio));
    }

    #[test]
    fn rounds_of_one_sample_are_drawn_together() {
        let ours = [vec![1.0], vec![2.0], vec![3.0]];
        let others = [vec![10.0], vec![10.0], vec![10.0]];
        let ratio = ratio_of_medians(&ours, &others).unwrap();
        assert_eq!(ratio.interval, Some((0.1, 0.3)));
    }

    #[test]
    fn a_single_sample_has_no_interval_and_nothing_no_ratio() {
        let one = [vec![1.0]];
        let ratio = ratio_of_medians(&one, &[vec![2.0]]).unwrap();
        assert_eq!((ratio.value, ratio.interval), (0.5, None));
        assert_eq!(ratio_of_medians(&one, &[vec![0.0]]), None);
        assert_eq!(ratio_of_medians(&one, &[]), None);
    }

    #[test]
    fn a_slope_is_that_of_the_nearest_line() {
        let slope = slope(&[(0.0, 1.0), (20.0, 3.0), (100.0, 11.0)]).unwrap();
        assert!((slope - 0.1).abs() < 1e-9, "{slope}");
        assert_eq!(super::slope(&[(5.0, 1.0), (5.0, 2.0)]), None);
        assert_eq!(super::slope(&[]), None);
    }
}
