//! An optimizer's update of a slice: the kernel of the optimizer's name, given what its row of the table
//! says.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::kernels::Kernel;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;
use crate::optimizers::{OptimStates, UpdateStep};

/// Updates `master` and `states`; overwrites `param` with the rounded master.
pub fn update(
    device: &CudaDevice,
    master: ViewMut<'_>,                  // (n) f32
    mut states: OptimStates<ViewMut<'_>>, // (n) f32 each
    grad: View<'_>,                       // (n)
    step: &UpdateStep,
    param: Option<ViewMut<'_>>, // (n) bf16
) {
    let n = master.numel();
    assert_eq!(grad.numel(), n, "gradient of a slice of {n}");
    assert_eq!(master.dtype(), DType::F32, "master weights");
    for (state, view) in states.iter() {
        assert_eq!((view.numel(), view.dtype()), (n, DType::F32), "{} of a slice of {n}", state.name());
    }
    if let Some(param) = &param {
        assert_eq!((param.numel(), param.dtype()), (n, DType::Bf16), "rounded parameters of a slice of {n}");
    }
    let kind = step.kind();
    let mut launch =
        device.launch(Kernel::new(kind.name()).of(grad.dtype()), device.grid_over(n)).write(master);
    for &state in kind.all_states() {
        launch = launch.write_or_null(states.take(state));
    }
    launch = launch.read(grad).write_or_null(param).long(n as i64);
    step.scalars().into_iter().fold(launch, |launch, number| launch.float(number)).go();
}
