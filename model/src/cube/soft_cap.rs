//! Soft caps: `tanh(x / cap) · cap`.

use cubecl::prelude::*;

/// `x`, soft-capped if the kernel is compiled with a cap.
#[cube]
pub(super) fn soft_capped(x: f32, cap: f32, #[comptime] is_capped: bool) -> f32 {
    let mut y = x;
    if comptime![is_capped] {
        // Some devices compute tanh from exponentials, which overflow; beyond 15 it is 1 in f32.
        let bounded = max(min(x / cap, 15.0f32), -15.0f32);
        y = bounded.tanh() * cap;
    }
    y
}

/// The derivative of [`soft_capped`] at its output `y`.
#[cube]
pub(super) fn slope(y: f32, cap: f32, #[comptime] is_capped: bool) -> f32 {
    let mut slope = 1.0f32;
    if comptime![is_capped] {
        slope = 1.0f32 - (y / cap) * (y / cap);
    }
    slope
}
