//! Transformer math: what each unit computes forward and backward, over views of whole parameters.
//!
//! A family describes itself as data ([`ModelSpec`]) for the planner and computes its units when told to.
//! Must not know: ranks, slices, schedules, where parameters come from.

pub mod family;
pub mod gpt2;
pub mod init;
pub mod layers;
pub mod llama;
pub mod logits;
pub mod qwen3;
pub mod rms_head;
#[cfg(test)]
mod tests;
pub mod token_embedding;
pub mod transformers;
pub mod unit;
pub mod visit;
pub mod visit_kernels;

pub use family::Family;
pub use visit::{BackwardIo, Cached, Dims, ForwardIo, LossGrad, LossIo};

use crate::backend::ops::AttentionShape;
use crate::backend::{Ops, View};
use crate::config::{self, Deck, ModelSection, ReduceWhen};
use crate::dtype::DType;
use crate::params::{ModelSpec, Precision, UnitId, UnitRole};
use transformers::{Tensor, Theirs};

/// The list of families: the enum of them, which one a deck asks for, and calls of [`Family`] for whichever
/// it is.
macro_rules! families {
    ($($(#[$meta:meta])* $Name:ident($Type:ty),)+) => {
        /// A model of one of the families.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum AnyFamily { $($(#[$meta])* $Name($Type),)+ }

        impl AnyFamily {
            /// The family that a deck asks for.
            fn new(model: &ModelSection, dims: Dims) -> Self {
                match model.family {
                    $(config::Family::$Name => AnyFamily::$Name(<$Type as Family>::new(model, dims)),)+
                }
            }

            /// config.json of a model for `transformers`, without the element type.
            pub fn transformers_config(model: &ModelSection) -> serde_json::Value {
                match model.family {
                    $(config::Family::$Name => <$Type as Family>::transformers_config(model),)+
                }
            }

            /// Reads a config.json of the family that has this name in decks.
            pub fn read_transformers_config(family: &str, theirs: &mut Theirs<'_>) {
                $(if family == config::Family::$Name.name() {
                    <$Type as Family>::read_transformers_config(theirs);
                })+
            }
        }

        /// An expression over the [`Family`] that an [`AnyFamily`] is.
        macro_rules! of_family {
            ($any:expr, $family:ident => $body:expr) => {
                match $any { $(AnyFamily::$Name($family) => $body,)+ }
            };
        }
    };
}

families! {
    /// GPT-2.
    Gpt2(gpt2::Gpt2),
    /// Llama.
    Llama(llama::Llama),
    /// Qwen3.
    Qwen3(qwen3::Qwen3),
}

/// A model for one micro-batch shape.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// Its sizes.
    pub dims: Dims,
    /// What computes it.
    pub family: AnyFamily,
}

impl Model {
    /// The model of a deck for micro-batches on devices of type `D`.
    pub fn of_deck<D: Ops>(deck: &Deck) -> Model {
        Model::of_rows::<D>(deck, deck.train.micro_batch_size, deck.model.seq_len)
    }

    /// The same parameters for `b` sequences of `t` tokens.
    pub fn of_rows<D: Ops>(deck: &Deck, b: usize, t: usize) -> Model {
        Model::new::<D>(&deck.model, b, t, precision(deck))
    }

    /// A model of these sizes and types for `b` sequences of `t` tokens.
    pub fn new<D: Ops>(m: &ModelSection, b: usize, t: usize, precision: Precision) -> Model {
        let dims = Dims {
            b,
            t,
            t_max: m.seq_len,
            c: m.d_model,
            n_heads: m.n_head,
            d_head: m.head_dim,
            vocab: m.vocab_size,
            n_layer: m.n_layer,
        };
        let family = AnyFamily::new(m, dims);
        let spec = of_family!(&family, family => family.spec::<D>(precision));
        Model { spec, dims, family }
    }

    /// Shape of a block's attention.
    pub fn attention_shape(&self) -> AttentionShape {
        of_family!(&self.family, family => family.attention_shape())
    }

    /// Every tensor as `transformers` saves it, in the order of our parameters; a tied head is not saved.
    pub fn transformers_tensors(&self) -> Vec<Tensor> {
        let params = self.spec.params.iter().enumerate();
        of_family!(&self.family, family => {
            params.flat_map(|(p, ours)| family.transformers_tensors(p, ours)).collect()
        })
    }

    /// Runs the forward of an embedding or block.
    pub fn forward<D: Ops>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: ForwardIo<'_>) {
        let unit = &self.spec.units[unit];
        of_family!(&self.family, family => match unit.role {
            UnitRole::Embedding => family.embedding(dev, params, io),
            UnitRole::Block => family.block(dev, unit.pieces, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        })
    }

    /// Runs the backward of an embedding or block.
    pub fn backward<D: Ops>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: BackwardIo<'_>) {
        let unit = &self.spec.units[unit];
        of_family!(&self.family, family => match unit.role {
            UnitRole::Embedding => family.embedding_backward(dev, io),
            UnitRole::Block => family.block_backward(dev, unit.pieces, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        })
    }

    /// Runs the head: losses, and in training its backward.
    pub fn loss<D: Ops>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        of_family!(&self.family, family => family.loss(dev, params, io))
    }
}

/// Element types of a deck's run. Activations are of the type that is computed with; full gradients of the
/// type they travel in, or f32 where they are held over micro-steps.
pub fn precision(deck: &Deck) -> Precision {
    let zero = &deck.zero;
    let grad = if zero.reduce == ReduceWhen::LastMicroStep { DType::F32 } else { zero.reduce_dtype };
    Precision { param: zero.param_dtype, activation: zero.param_dtype, grad }
}
