//! Rotary position embedding, in place on the query and key heads of each row.

use crate::backend::ViewMut;
use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{THREADS, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::ops::{AttentionShape, Rotation};

/// Rotates in place.
pub fn rope(device: &CudaDevice, qkv: ViewMut<'_>, shape: AttentionShape, rotation: Rotation) {
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    assert!(d_head.is_multiple_of(2), "heads of {d_head} channels cannot be rotated in pairs");
    assert_eq!(qkv.numel(), b * t * shape.qkv_row(), "projection of {shape:?}");
    // An f64 as the sum of two f32.
    let split = |x: f64| (x as f32, (x - f64::from(x as f32)) as f32);
    let ratio = split(libm::pow(f64::from(rotation.theta), -2.0 / d_head as f64));
    let radian = split(1.0 / std::f64::consts::TAU);
    let rows = b * t;
    device
        .launch(Kernel::new("rope").of(qkv.dtype()), device.blocks((rows * d_head / 2).div_ceil(THREADS)))
        .write(qkv)
        .long(rows as i64)
        .int(int(t))
        .int(int(rotation.first))
        .int(int(n_heads + n_kv_heads))
        .int(int(shape.qkv_row()))
        .int(int(d_head))
        .float(ratio.0)
        .float(ratio.1)
        .float(radian.0)
        .float(radian.1)
        .int(i32::from(rotation.inverse))
        .go();
}
