//! Thinning of curves to the points that are visible.

/// Buckets along an axis: about the pixels of a chart.
pub(crate) const BUCKETS: usize = 320;

/// A point: step and value.
pub(crate) type Point = (f64, f64);

/// Span in steps of the running mean for a run of `rows` rows; below 2 there is nothing to smooth.
pub(crate) fn span(rows: usize) -> usize {
    (rows / 40).min(50)
}

/// The exponential moving mean with weight `2 / (span + 1)`, corrected for its start at 0 so that the first value equals the
/// first point's (as Adam's bias correction, Kingma and Ba 2015).
pub(crate) fn smoothed(points: &[Point], span: usize) -> Vec<Point> {
    let keep = 1.0 - 2.0 / (span as f64 + 1.0);
    let (mut mean, mut weight) = (0.0, 0.0);
    let smooth = |&(x, y): &Point| {
        mean = keep * mean + (1.0 - keep) * y;
        weight = keep * weight + (1.0 - keep);
        (x, mean / weight)
    };
    points.iter().map(smooth).collect()
}

/// The minimum and the maximum of each bucket in order, which preserves peaks. `points` ascend along x.
pub(crate) fn with_extremes(points: &[Point]) -> Vec<Point> {
    thinned(points, 2 * BUCKETS, |bucket, kept| {
        let by_value = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let (lowest, highest) = (bucket.iter().min_by(by_value), bucket.iter().max_by(by_value));
        if let (Some(&lowest), Some(&highest)) = (lowest, highest) {
            let (first, second) =
                if lowest.0 <= highest.0 { (lowest, highest) } else { (highest, lowest) };
            kept.push(first);
            if second != first {
                kept.push(second);
            }
        }
    })
}

/// The first point, and the last point of each bucket: for smooth lines.
pub(crate) fn with_last(points: &[Point]) -> Vec<Point> {
    let mut kept = thinned(points, BUCKETS, |bucket, kept| kept.extend(bucket.last()));
    if let (Some(first), Some(kept_first)) = (points.first(), kept.first())
        && first != kept_first
    {
        kept.insert(0, *first);
    }
    kept
}

fn thinned(
    points: &[Point],
    enough: usize,
    mut keep: impl FnMut(&[Point], &mut Vec<Point>),
) -> Vec<Point> {
    let ([(first, _), .., (last, _)], true) = (points, points.len() > enough) else {
        return points.to_vec();
    };
    let width = (last - first) / BUCKETS as f64;
    let bucket_of = |x: f64| (((x - first) / width) as usize).min(BUCKETS - 1);
    let mut kept = Vec::with_capacity(enough);
    for bucket in points.chunk_by(|a, b| bucket_of(a.0) == bucket_of(b.0)) {
        keep(bucket, &mut kept);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_a_constant_is_constant() {
        let points: Vec<Point> = (0..100).map(|x| (f64::from(x), 3.5)).collect();
        for (x, (_, y)) in smoothed(&points, 10).into_iter().enumerate() {
            assert!((y - 3.5).abs() < 1e-12, "{x}: {y}");
        }
    }

    #[test]
    fn the_mean_is_weighted_and_corrected() {
        // Weights 1/3 and 2/3, total weights 1/3 and 1 - 1/9: (2/3·(1/3)·0 + 2/3·9) / (8/9).
        let means = smoothed(&[(0.0, 0.0), (1.0, 9.0)], 2);
        assert_eq!(means[0], (0.0, 0.0));
        assert!((means[1].1 - 6.75).abs() < 1e-12);
    }

    #[test]
    fn thinning_keeps_peaks() {
        let mut points: Vec<Point> = (1..=100_000).map(|x| (f64::from(x), 1.0)).collect();
        points[54_321].1 = 50.0;
        points[54_322].1 = -50.0;
        let kept = with_extremes(&points);
        assert!(kept.len() <= 2 * BUCKETS, "{}", kept.len());
        assert!(kept.contains(&points[54_321]) && kept.contains(&points[54_322]));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        let kept = with_last(&points);
        assert!(kept.len() <= BUCKETS + 1);
        assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
    }

    #[test]
    fn few_points_are_not_thinned() {
        let points: Vec<Point> = (0..300).map(|x| (f64::from(x), f64::from(x % 7))).collect();
        assert_eq!(with_extremes(&points), points);
        assert_eq!(with_last(&points), points);
        assert!(with_extremes(&[]).is_empty());
        assert_eq!(with_last(&[(1.0, 2.0)]), [(1.0, 2.0)]);
    }
}
