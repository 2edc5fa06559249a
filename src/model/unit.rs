//! A unit as a struct of layers, and what follows from that: parameters by name, what forward saves, views by
//! field.
//!
//! `unit!` states the layers of a unit once, in order, each with its tag and what it reads; `scratch!` does
//! the same for the scratch of a visit. The planner gets lists from them ([`Unit`], `specs`), and forward and
//! backward get structs whose fields are the same tensors.
//!
//! \[Note: roles are types\] Two tensors of one shape cannot be exchanged by mistake:
//!
//! - a layer's parameters, gradients and saved tensors are private to its kind ([`layers`](super::layers)),
//!   which hands them to the kernels in one place for all families;
//! - what a layer reads has a type that names the layer which wrote it. This is GPT-2's hidden layer, which
//!   reads `ln_2`:
//!
//! ```
//! use zero3::backend::{Ops, ViewMut};
//! use zero3::model::gpt2::block::Forward;
//!
//! fn hidden<D: Ops>(dev: &D, block: &mut Forward<'_>, work: ViewMut<'_>) {
//!     block.c_fc.forward(dev, block.ln_2.out(), work);
//! }
//! ```
//!
//! The output of `ln_1` has the same shape and element type, and another type:
//!
//! ```compile_fail,E0308
//! use zero3::backend::{Ops, ViewMut};
//! use zero3::model::gpt2::block::Forward;
//!
//! fn hidden<D: Ops>(dev: &D, block: &mut Forward<'_>, work: ViewMut<'_>) {
//!     block.c_fc.forward(dev, block.ln_1.out(), work);
//! }
//! ```
//!
//! The weight and the bias of a norm have one shape; a unit cannot even name them, let alone exchange them:
//!
//! ```compile_fail,E0616
//! use zero3::backend::View;
//! use zero3::model::gpt2::block::Forward;
//!
//! fn weight<'a>(block: &Forward<'a>) -> View<'a> {
//!     block.ln_1.params.bias
//! }
//! ```
//!
//! The residual stream, its gradient and scratch are plain views, known by their names alone.
//!
//! Must not know: which units a family has.

use super::layers::Layer;
use super::visit::Dims;
use crate::params::{Init, ModelSpec, ParamId, ParamSpec, Piece, Precision, TensorSpec, UnitRole, UnitSpec};
use crate::work::LinearShape;

/// A unit, as the planner sees it.
pub trait Unit {
    /// Its parameters, names with `prefix` before them.
    fn param_specs(&self, prefix: &str) -> Vec<ParamSpec>;
    /// What forward saves.
    fn saved_specs(&self, precision: Precision) -> Vec<TensorSpec>;
    /// Its linear layers.
    fn products(&self) -> Vec<LinearShape>;
}

/// Defines a unit: `Name { field: Kind<Tag reads OtherTag>, ... }`. Makes the struct of layers, the tags, and
/// the structs `Forward`, `Backward` and `Grads` with a field for each layer; one unit to a module.
macro_rules! unit {
    (
        $(#[$meta:meta])*
        $Unit:ident {
            $($(#[$field_meta:meta])* $field:ident: $Kind:ident<$Tag:ident $(reads $From:ident)?>,)+
        }
    ) => {
        $(
            #[doc = concat!("Tag of `", stringify!($field), "`.")]
            #[derive(Debug, Clone, Copy, PartialEq)]
            pub enum $Tag {}

            $(impl $crate::model::layers::Reads for $Tag {
                type From = $From;
            })?
        )+

        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $Unit {
            $($(#[$field_meta])* pub $field: $Kind<$Tag>,)+
        }

        /// The unit in a forward visit.
        pub struct Forward<'a> {
            $($(#[$field_meta])* pub $field: $crate::model::layers::Forward<'a, $Kind<$Tag>>,)+
        }

        /// The unit in a backward visit.
        pub struct Backward<'a> {
            $($(#[$field_meta])* pub $field: $crate::model::layers::Backward<'a, $Kind<$Tag>>,)+
        }

        /// The full gradients of the unit's parameters, without padding.
        pub struct Grads<'a> {
            $(
                $(#[$field_meta])*
                pub $field:
                    <$Kind<$Tag> as $crate::model::layers::Layer>::Params<$crate::backend::ViewMut<'a>>,
            )+
        }

        #[allow(dead_code, reason = "a unit has what its visits need")]
        impl $Unit {
            /// Its layers, each with views of its parameters and the buffers for what it saves.
            pub fn bind_forward<'a>(
                &'a self,
                params: &[$crate::backend::View<'a>],
                saved: &'a mut [$crate::backend::Buf],
            ) -> Forward<'a> {
                let mut params = params.iter().copied();
                let mut saved = saved.iter_mut().map($crate::backend::Buf::view_mut);
                let unit = Forward {
                    $($field: $crate::model::layers::Forward::new(&self.$field, &mut params, &mut saved),)+
                };
                let left = (params.next().is_some(), saved.next().is_some());
                assert_eq!(left, (false, false), "parameters or saved tensors that no layer has");
                unit
            }

            /// Its layers, each with views of its parameters and of what it has saved, and the buffers for
            /// its parameters' gradients.
            pub fn bind_backward<'a>(
                &'a self,
                params: &[$crate::backend::View<'a>],
                saved: &'a [$crate::backend::Buf],
                grads: &'a mut [$crate::backend::Buf],
            ) -> Backward<'a> {
                let mut params = params.iter().copied();
                let mut saved = saved.iter().map($crate::backend::Buf::view);
                let mut grads = grads.iter_mut().map($crate::backend::Buf::view_mut);
                let unit = Backward {
                    $($field: $crate::model::layers::Backward::new(
                        &self.$field, &mut params, &mut saved, &mut grads,
                    ),)+
                };
                let left = (params.next().is_some(), saved.next().is_some(), grads.next().is_some());
                assert_eq!(
                    left,
                    (false, false, false),
                    "parameters, saved tensors or gradients that no layer has"
                );
                unit
            }

            /// Number of saved tensors.
            pub fn n_saved(&self) -> usize {
                let mut n = 0;
                $($crate::model::layers::Layer::saved(&self.$field, |_| n += 1);)+
                n
            }

            /// The gradients alone.
            pub fn grads<'a>(&self, grads: &'a mut [$crate::backend::Buf]) -> Grads<'a> {
                let mut grads = grads.iter_mut().map($crate::backend::Buf::view_mut);
                let unit = Grads { $($field: $crate::model::layers::take_grads(&self.$field, &mut grads),)+ };
                assert!(grads.next().is_none(), "gradients that no layer has");
                unit
            }
        }

        impl $crate::model::unit::Unit for $Unit {
            fn param_specs(&self, prefix: &str) -> Vec<$crate::params::ParamSpec> {
                let mut specs = Vec::new();
                $($crate::model::unit::param_specs(&mut specs, prefix, &self.$field);)+
                specs
            }

            fn saved_specs(&self, precision: $crate::params::Precision) -> Vec<$crate::params::TensorSpec> {
                let mut specs = Vec::new();
                $($crate::model::unit::saved_specs(&mut specs, stringify!($field), &self.$field, precision);)+
                specs
            }

            fn products(&self) -> Vec<$crate::work::LinearShape> {
                [$($crate::model::layers::Layer::product(&self.$field),)+].into_iter().flatten().collect()
            }
        }
    };
}

/// Defines the scratch of a visit: `Name<D>(sizes: &Type, precision) { field: (numel, dtype), ... }`, where
/// `numel` may ask the device type `D`. Makes a struct of views and the list that the planner lays out, in
/// the same order.
macro_rules! scratch {
    (
        $(#[$meta:meta])*
        $Name:ident<$D:ident>($unit:ident: &$Unit:ty, $precision:ident) {
            $($(#[$field_meta:meta])* $field:ident: ($numel:expr, $dtype:expr),)+
        }
    ) => {
        $(#[$meta])*
        pub struct $Name<'a> {
            $($(#[$field_meta])* pub $field: $crate::backend::ViewMut<'a>,)+
        }

        impl<'a> $Name<'a> {
            /// What the planner lays out.
            #[allow(unused_variables, reason = "not every scratch depends on both")]
            pub fn specs<$D: $crate::backend::Ops>(
                $unit: &$Unit,
                $precision: $crate::params::Precision,
            ) -> Vec<$crate::params::TensorSpec> {
                vec![$($crate::params::TensorSpec::new(stringify!($field), $numel, $dtype),)+]
            }

            /// Views of the buffers.
            pub fn of(bufs: &'a mut [$crate::backend::Buf]) -> Self {
                let [$($field),+] = bufs else { panic!("{} scratch buffers for \
                                                        {}", bufs.len(), stringify!($Name)) };
                $Name { $($field: $field.view_mut(),)+ }
            }
        }
    };
}

pub(in crate::model) use {scratch, unit};

/// Adds the parameters of a layer.
pub fn param_specs(specs: &mut Vec<ParamSpec>, prefix: &str, layer: &impl Layer) {
    layer.params(|part| {
        let (name, shape) = (format!("{prefix}{}.{}", layer.name(), part.name), part.shape.to_vec());
        specs.push(ParamSpec { name, decay: shape.len() >= 2, shape, init: part.init });
    });
}

/// Adds what a layer saves.
pub fn saved_specs(specs: &mut Vec<TensorSpec>, field: &str, layer: &impl Layer, precision: Precision) {
    layer.saved(|part| {
        specs.push(TensorSpec::new(format!("{field}.{}", part.name), part.numel, part.dtype(precision)));
    });
}

/// A unit's visits.
#[derive(Debug, Clone, Default)]
pub struct Visits {
    /// What they consist of.
    pub pieces: &'static [Piece],
    /// Scratch of a forward.
    pub forward_work: Vec<TensorSpec>,
    /// Scratch of a backward; of the head: of its one visit, beside what its layers save.
    pub backward_work: Vec<TensorSpec>,
}

/// Puts a model together, unit by unit.
pub struct SpecBuilder<'a> {
    dims: &'a Dims,
    precision: Precision,
    params: Vec<ParamSpec>,
    units: Vec<UnitSpec>,
    /// Weights of matrix products, each once for each token.
    multiplied: usize,
}

impl<'a> SpecBuilder<'a> {
    /// Nothing yet.
    pub fn new(dims: &'a Dims, precision: Precision) -> Self {
        SpecBuilder { dims, precision, params: Vec::new(), units: Vec::new(), multiplied: 0 }
    }

    /// Adds a unit. A parameter whose name is there already is that one: it is tied.
    pub fn unit(&mut self, name: &str, prefix: &str, role: UnitRole, unit: &impl Unit, visits: Visits) {
        let params = unit.param_specs(prefix).into_iter().map(|spec| self.param(spec)).collect();
        let mut saved = unit.saved_specs(self.precision);
        let Visits { pieces, forward_work, mut backward_work } = visits;
        if role == UnitRole::Head {
            // One visit, which nothing outlives.
            saved.append(&mut backward_work);
            std::mem::swap(&mut saved, &mut backward_work);
        }
        self.multiplied += unit.products().iter().map(|p| p.n_in * p.n_out).sum::<usize>();
        self.units.push(UnitSpec {
            name: name.into(),
            role,
            params,
            pieces,
            saved,
            forward_work,
            backward_work,
        });
    }

    fn param(&mut self, spec: ParamSpec) -> ParamId {
        if let Some(id) = self.params.iter().position(|param| param.name == spec.name) {
            assert_eq!(
                self.params[id].shape, spec.shape,
                "{} is tied to a tensor of its own shape",
                spec.name
            );
            return id;
        }
        self.params.push(spec);
        self.params.len() - 1
    }

    /// The model, whose attention writes rows of `out_row` elements. `alias` is another name of a parameter.
    ///
    /// `flops_per_token` is 6 FLOPs per weight of a matrix multiplication, and 12 L T (H D) for attention
    /// scores and values (forward and backward, without the causal discount), as in arXiv:2204.02311,
    /// appendix B. Looking rows up is no product.
    pub fn finish(self, out_row: usize, alias: Option<(&str, &str)>) -> ModelSpec {
        let SpecBuilder { dims, precision, params, units, multiplied } = self;
        let multiplied = multiplied + dims.vocab * dims.c;
        let id =
            |of: &str| params.iter().position(|param| param.name == of).expect("a parameter of the model");
        ModelSpec {
            aliases: alias.map(|(name, of)| (name.to_string(), id(of))).into_iter().collect(),
            params,
            units,
            activation_dtype: precision.activation,
            residual_numel: dims.rows() * dims.c,
            tokens_per_micro_batch: dims.rows(),
            flops_per_token: 6.0 * multiplied as f64 + 12.0 * (dims.n_layer * dims.t) as f64 * out_row as f64,
        }
    }
}

/// Standard deviation of initial weights.
const STD: f64 = 0.02;

/// How matrices begin.
pub const NORMAL: Init = Init::Normal { std: STD };

/// How the projections begin whose outputs are added to the residual stream, of a model of `n_layer` blocks
/// (Radford et al. 2019).
pub fn residual_init(n_layer: usize) -> Init {
    Init::Normal { std: STD / ((2 * n_layer) as f64).sqrt() }
}
