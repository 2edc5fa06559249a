//! Token and position embedding.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{CHUNK, THREADS, WARP, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::{Ops, View, ViewMut};
use crate::dtype::DType;

/// Overwrites `out`.
pub fn forward(
    device: &CudaDevice,
    out: ViewMut<'_>,      // (rows, C)
    tokens: View<'_>,      // (rows) u32
    wte: View<'_>,         // (V, C)
    wpe: Option<View<'_>>, // (T_max, C)
    t: usize,
) {
    let Some(c) = channels(out.numel(), tokens, t) else { return };
    let (rows, vocab) = (tokens.numel(), wte.numel() / c);
    if let Some(wpe) = wpe {
        assert!(
            wpe.numel() >= t * c && wpe.numel().is_multiple_of(c),
            "wpe has {} elements, {t} of {c}",
            wpe.numel()
        );
        assert_eq!(wpe.dtype(), wte.dtype(), "one type of parameters");
    }
    assert_eq!(wte.dtype(), out.dtype(), "one type of parameters and activations");
    device
        .launch(Kernel::new("embedding_forward").of(out.dtype()), device.blocks_over_rows(rows, c))
        .write(out)
        .read(tokens)
        .read(wte)
        .read_or_null(wpe)
        .long(rows as i64)
        .int(int(t))
        .int(int(c))
        .int(int(vocab))
        .go();
}

/// Accumulates into `dwte`, overwrites `dwpe` where there is one.
pub fn backward(
    device: &CudaDevice,
    dwte: ViewMut<'_>,         // (V, C)
    dwpe: Option<ViewMut<'_>>, // (T_max, C)
    dout: View<'_>,            // (rows, C)
    tokens: View<'_>,          // (rows) u32
    mut work: ViewMut<'_>,     // (rows) u32
    t: usize,
) {
    let Some(c) = channels(dout.numel(), tokens, t) else {
        return dwpe.into_iter().for_each(|dwpe| device.fill_bytes(dwpe, 0));
    };
    let (rows, vocab) = (tokens.numel(), dwte.numel() / c);
    assert!(
        work.numel() >= rows && work.dtype() == DType::U32,
        "scratch of {} elements, {rows} needed",
        work.numel()
    );
    device
        .launch(Kernel::new("embedding_order"), device.blocks(rows.div_ceil(THREADS)))
        .write(work.reborrow())
        .read(tokens)
        .int(int(rows))
        .go();
    // A warp for each row and stripe.
    let warps = rows * c.div_ceil(WARP * CHUNK);
    device
        .launch(
            Kernel::new("embedding_backward_wte").of(dout.dtype()).of(dwte.dtype()),
            device.blocks((warps * WARP).div_ceil(THREADS)),
        )
        .write(dwte)
        .read(dout)
        .read(tokens)
        .read(work.as_view())
        .int(int(rows))
        .int(int(c))
        .int(int(vocab))
        .go();
    let Some(dwpe) = dwpe else { return };
    let t_max = dwpe.numel() / c;
    assert!(
        t_max >= t && dwpe.numel() == t_max * c,
        "dwpe has {} elements, {t} positions of {c}",
        dwpe.numel()
    );
    device
        .launch(
            Kernel::new("embedding_backward_wpe").of(dout.dtype()).of(dwpe.dtype()),
            device.blocks_over_rows(t_max, c),
        )
        .write(dwpe)
        .read(dout)
        .long(rows as i64)
        .int(int(t))
        .int(int(t_max))
        .int(int(c))
        .go();
}

/// Columns of a (rows, C) matrix of `numel` elements; None where there are no rows.
fn channels(numel: usize, tokens: View<'_>, t: usize) -> Option<usize> {
    let rows = tokens.numel();
    assert_eq!(tokens.dtype(), DType::U32, "tokens");
    assert!(t > 0 && rows.is_multiple_of(t), "{rows} tokens are not sequences of {t}");
    if rows == 0 {
        return None;
    }
    assert!(numel.is_multiple_of(rows) && numel > 0, "{numel} elements in {rows} rows");
    Some(numel / rows)
}
