//! Sums over a cube, in an order that depends only on its size.

use cubecl::prelude::*;

use super::launch::UNITS;

/// The sum of every unit's `value`, for every unit. `shared` has one number per unit.
#[cube]
pub(super) fn cube_sum(shared: &mut SharedMemory<f32>, value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    // Wait until every unit has read the previous result.
    sync_cube();
    shared[unit] = value;
    sync_cube();
    let mut half = comptime![UNITS / 2].runtime();
    while half > 0 {
        if unit < half {
            let other = shared[unit + half];
            shared[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    shared[0]
}

/// The maximum of every unit's `value`, for every unit.
#[cube]
pub(super) fn cube_max(shared: &mut SharedMemory<f32>, value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = value;
    sync_cube();
    let mut half = comptime![UNITS / 2].runtime();
    while half > 0 {
        if unit < half {
            let other = shared[unit + half];
            shared[unit] = max(shared[unit], other);
        }
        sync_cube();
        half /= 2;
    }
    shared[0]
}
