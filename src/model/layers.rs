//! The layers that units are made of: each kind states its parameters and what it saves once, and computes
//! over them.
//!
//! A unit is a struct of layers ([`unit!`](super::unit)), and a layer has a tag of its own, `L`. What a layer
//! reads is part of its type ([`Reads`]), and its parameters, gradients and saved tensors come together and
//! stay together ([`Forward`], [`Backward`]): weight and bias, mean and rstd, or the outputs of two norms
//! cannot be exchanged, however alike their shapes are. In the order in which a kind names its tensors they
//! lie in parameters, gathers and plans.
//!
//! Must not know: which layers a family has, where memory comes from.

use super::visit::Cached;
use crate::backend::ops::{AttentionShape, Columns, LinearShape, Rotation};
use crate::backend::{Ops, View, ViewMut};
use crate::dtype::DType;
use crate::params::{Init, Precision};
use std::marker::PhantomData;

/// A parameter of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Name within the layer, e.g. `weight`.
    pub name: &'static str,
    /// Shape, row-major.
    pub shape: &'a [usize],
    /// Initial values.
    pub init: Init,
}

impl Part<'_> {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A tensor that a layer's forward writes and its backward reads.
#[derive(Debug, Clone, Copy)]
pub struct SavedPart {
    /// Name within the layer, e.g. `rstd`.
    pub name: &'static str,
    /// Number of elements.
    pub numel: usize,
    /// f32 whatever activations are.
    pub is_statistic: bool,
}

impl SavedPart {
    fn activation(name: &'static str, numel: usize) -> Self {
        SavedPart { name, numel, is_statistic: false }
    }

    fn statistic(name: &'static str, numel: usize) -> Self {
        SavedPart { name, numel, is_statistic: true }
    }

    /// Element type.
    pub fn dtype(&self, precision: Precision) -> DType {
        if self.is_statistic { DType::F32 } else { precision.activation }
    }
}

/// A kind of layer. `V` is a view, or whatever else there is one of for each tensor.
pub trait Layer {
    /// Its parameters.
    type Params<V>;
    /// What it saves.
    type Saved<V>;

    /// The name its parameters begin with.
    fn name(&self) -> &'static str;
    /// The matrix product that it is.
    fn product(&self) -> Option<LinearShape> {
        None
    }
    /// One thing for each parameter, in order.
    fn params<V>(&self, each: impl FnMut(Part<'_>) -> V) -> Self::Params<V>;
    /// One thing for each saved tensor, in order.
    fn saved<V>(&self, each: impl FnMut(SavedPart) -> V) -> Self::Saved<V>;
}

/// What layer `L` reads: the output of another layer, by its tag.
pub trait Reads {
    /// That layer.
    type From;
}

/// Tag of what a unit reads: the residual stream as the unit before has left it.
pub enum Residual {}

/// Rows that layer `L` has written.
pub struct Rows<'a, L> {
    view: View<'a>,
    of: PhantomData<L>,
}

impl<'a, L> Rows<'a, L> {
    fn new(view: View<'a>) -> Self {
        Rows { view, of: PhantomData }
    }

    /// The rows, whatever they are.
    pub fn view(self) -> View<'a> {
        self.view
    }
}

impl<L> Clone for Rows<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Rows<'_, L> {}

impl<'a> Rows<'a, Residual> {
    /// A unit's input.
    pub fn input(view: View<'a>) -> Self {
        Rows::new(view)
    }
}

/// A layer in a forward visit.
pub struct Forward<'a, K: Layer> {
    /// Its sizes.
    pub of: &'a K,
    params: K::Params<View<'a>>,
    saved: K::Saved<ViewMut<'a>>,
}

impl<'a, K: Layer> Forward<'a, K> {
    /// With views of its parameters and of what it saves, each in order.
    pub fn new(
        of: &'a K,
        params: &mut impl Iterator<Item = View<'a>>,
        saved: &mut impl Iterator<Item = ViewMut<'a>>,
    ) -> Self {
        Forward {
            of,
            params: take_params(of, params),
            saved: of.saved(|_| saved.next().expect("one per saved tensor")),
        }
    }
}

/// A layer in a backward visit.
pub struct Backward<'a, K: Layer> {
    /// Its sizes.
    pub of: &'a K,
    params: K::Params<View<'a>>,
    saved: K::Saved<View<'a>>,
    grads: K::Params<ViewMut<'a>>,
}

impl<'a, K: Layer> Backward<'a, K> {
    /// With views of its parameters, of what it has saved, and of the full gradients, each in order.
    pub fn new(
        of: &'a K,
        params: &mut impl Iterator<Item = View<'a>>,
        saved: &mut impl Iterator<Item = View<'a>>,
        grads: &mut impl Iterator<Item = ViewMut<'a>>,
    ) -> Self {
        let (params, grads) = (take_params(of, params), take_grads(of, grads));
        Backward { of, params, saved: of.saved(|_| saved.next().expect("one per saved tensor")), grads }
    }
}

fn take_params<'a, K: Layer>(of: &K, params: &mut impl Iterator<Item = View<'a>>) -> K::Params<View<'a>> {
    of.params(|part| {
        let view = params.next().expect("one per parameter");
        assert_eq!(view.numel(), part.numel(), "elements of {}.{}", of.name(), part.name);
        view
    })
}

/// Gradients of a layer: buffers without their padding.
pub fn take_grads<'a, K: Layer>(
    of: &K,
    grads: &mut impl Iterator<Item = ViewMut<'a>>,
) -> K::Params<ViewMut<'a>> {
    of.params(|part| grads.next().expect("one per parameter").range(0..part.numel()))
}

/// No tensors.
pub struct Nothing;

/// LayerNorm of rows of `c` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm<L> {
    name: &'static str,
    rows: usize,
    c: usize,
    of: PhantomData<L>,
}

/// Parameters of a [`LayerNorm`].
pub struct LayerNormParams<V> {
    weight: V,
    bias: V,
}

/// What a [`LayerNorm`] saves.
pub struct LayerNormSaved<V> {
    mean: V,
    rstd: V,
    out: V,
}

impl<L> LayerNorm<L> {
    /// Of `rows` rows of `c` elements.
    pub const fn new(name: &'static str, rows: usize, c: usize) -> Self {
        LayerNorm { name, rows, c, of: PhantomData }
    }

    /// Scratch of its backward.
    pub fn work_numel<D: Ops>(&self) -> usize {
        D::layer_norm_work_numel(self.rows, self.c)
    }
}

impl<L> Layer for LayerNorm<L> {
    type Params<V> = LayerNormParams<V>;
    type Saved<V> = LayerNormSaved<V>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn params<V>(&self, mut each: impl FnMut(Part<'_>) -> V) -> LayerNormParams<V> {
        LayerNormParams {
            weight: each(Part { name: "weight", shape: &[self.c], init: Init::Ones }),
            bias: each(Part { name: "bias", shape: &[self.c], init: Init::Zeros }),
        }
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> LayerNormSaved<V> {
        LayerNormSaved {
            mean: each(SavedPart::statistic("mean", self.rows)),
            rstd: each(SavedPart::statistic("rstd", self.rows)),
            out: each(SavedPart::activation("out", self.rows * self.c)),
        }
    }
}

impl<L: Reads> Forward<'_, LayerNorm<L>> {
    /// Normalises `inp`. Overwrites what it saves.
    pub fn forward<D: Ops>(&mut self, dev: &D, inp: Rows<'_, L::From>) {
        let LayerNormSaved { mean, rstd, out } = &mut self.saved;
        let LayerNormParams { weight, bias } = self.params;
        dev.layer_norm_forward(out.reborrow(), mean.reborrow(), rstd.reborrow(), inp.view(), weight, bias);
    }

    /// Adds a branch to the residual stream and normalises the sum. Overwrites what both save.
    pub fn forward_of_sum<D: Ops>(
        &mut self,
        dev: &D,
        sum: &mut Forward<'_, Sum<L::From>>,
        residual: Rows<'_, Residual>,
        branch: View<'_>,
    ) {
        let LayerNormSaved { mean, rstd, out } = &mut self.saved;
        let LayerNormParams { weight, bias } = self.params;
        dev.add_layer_norm_forward(
            sum.saved.out.reborrow(),
            out.reborrow(),
            mean.reborrow(),
            rstd.reborrow(),
            residual.view(),
            branch,
            weight,
            bias,
        );
    }

    /// The normed rows.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L: Reads> Backward<'_, LayerNorm<L>> {
    /// Adds the gradient of its input to `dinp`; overwrites its parameters' gradients.
    pub fn backward_add<D: Ops>(
        &mut self,
        dev: &D,
        dinp: ViewMut<'_>,
        dout: View<'_>,
        inp: Rows<'_, L::From>,
        work: ViewMut<'_>,
    ) {
        let LayerNormSaved { mean, rstd, .. } = self.saved;
        let LayerNormParams { weight: dweight, bias: dbias } = &mut self.grads;
        let (dweight, dbias) = (dweight.reborrow(), dbias.reborrow());
        dev.layer_norm_backward(dinp, dweight, dbias, dout, inp.view(), self.params.weight, mean, rstd, work);
    }

    /// The normed rows.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

/// RMSNorm of rows of `c` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm<L> {
    name: &'static str,
    rows: usize,
    c: usize,
    eps: f32,
    of: PhantomData<L>,
}

/// The parameter of an [`RmsNorm`].
pub struct RmsNormParams<V> {
    weight: V,
}

/// What an [`RmsNorm`] saves.
pub struct RmsNormSaved<V> {
    rstd: V,
    out: V,
}

impl<L> RmsNorm<L> {
    /// Of `rows` rows of `c` elements.
    pub const fn new(name: &'static str, rows: usize, c: usize, eps: f32) -> Self {
        RmsNorm { name, rows, c, eps, of: PhantomData }
    }

    /// Scratch of its backward.
    pub fn work_numel<D: Ops>(&self) -> usize {
        D::rms_norm_work_numel(self.rows, self.c)
    }
}

impl<L> Layer for RmsNorm<L> {
    type Params<V> = RmsNormParams<V>;
    type Saved<V> = RmsNormSaved<V>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn params<V>(&self, mut each: impl FnMut(Part<'_>) -> V) -> RmsNormParams<V> {
        RmsNormParams { weight: each(Part { name: "weight", shape: &[self.c], init: Init::Ones }) }
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> RmsNormSaved<V> {
        RmsNormSaved {
            rstd: each(SavedPart::statistic("rstd", self.rows)),
            out: each(SavedPart::activation("out", self.rows * self.c)),
        }
    }
}

impl<L: Reads> Forward<'_, RmsNorm<L>> {
    /// Normalises `inp`. Overwrites what it saves.
    pub fn forward<D: Ops>(&mut self, dev: &D, inp: Rows<'_, L::From>) {
        let RmsNormSaved { rstd, out } = &mut self.saved;
        dev.rms_norm_forward(out.reborrow(), rstd.reborrow(), inp.view(), self.params.weight, self.of.eps);
    }

    /// The normed rows.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L: Reads> Backward<'_, RmsNorm<L>> {
    /// Adds the gradient of its input to `dinp`; overwrites its parameter's gradient.
    pub fn backward_add<D: Ops>(
        &mut self,
        dev: &D,
        dinp: ViewMut<'_>,
        dout: View<'_>,
        inp: Rows<'_, L::From>,
        work: ViewMut<'_>,
    ) {
        let dweight = self.grads.weight.reborrow();
        dev.rms_norm_backward(dinp, dweight, dout, inp.view(), self.params.weight, self.saved.rstd, work);
    }

    /// The normed rows.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

/// What a [`LinearOf`] saves of its output.
pub trait LinearSaves {
    /// The tensors.
    type Saved<V>;
    /// One thing for each, of a layer with `numel` elements of output.
    fn saved<V>(numel: usize, each: impl FnMut(SavedPart) -> V) -> Self::Saved<V>;
}

/// Its output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavesOutput;

/// Its output, and GELU of that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavesGelu;

/// Nothing: the output is a branch that is added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavesNothing;

/// What [`SavesOutput`] has.
pub struct OutputSaved<V> {
    out: V,
}

/// What [`SavesGelu`] has.
pub struct GeluSaved<V> {
    pre: V,
    out: V,
}

impl LinearSaves for SavesOutput {
    type Saved<V> = OutputSaved<V>;

    fn saved<V>(numel: usize, mut each: impl FnMut(SavedPart) -> V) -> OutputSaved<V> {
        OutputSaved { out: each(SavedPart::activation("out", numel)) }
    }
}

impl LinearSaves for SavesGelu {
    type Saved<V> = GeluSaved<V>;

    fn saved<V>(numel: usize, mut each: impl FnMut(SavedPart) -> V) -> GeluSaved<V> {
        GeluSaved {
            pre: each(SavedPart::activation("pre", numel)),
            out: each(SavedPart::activation("out", numel)),
        }
    }
}

impl LinearSaves for SavesNothing {
    type Saved<V> = Nothing;

    fn saved<V>(_: usize, _: impl FnMut(SavedPart) -> V) -> Nothing {
        Nothing
    }
}

/// A linear layer; `S` says what of its output it saves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearOf<L, S> {
    name: &'static str,
    shape: LinearShape,
    init: Init,
    has_bias: bool,
    of: PhantomData<(L, S)>,
}

/// A linear layer whose output is saved.
pub type Linear<L> = LinearOf<L, SavesOutput>;

/// A linear layer with GELU after it.
pub type LinearGelu<L> = LinearOf<L, SavesGelu>;

/// A linear layer whose output is added to the residual stream.
pub type LinearBranch<L> = LinearOf<L, SavesNothing>;

/// Parameters of a [`LinearOf`].
pub struct LinearParams<V> {
    weight: V,
    bias: Option<V>,
}

impl<L, S> LinearOf<L, S> {
    /// A matrix of `shape`, and a bias that begins as zeros where `has_bias`.
    pub const fn new(name: &'static str, shape: LinearShape, init: Init, has_bias: bool) -> Self {
        LinearOf { name, shape, init, has_bias, of: PhantomData }
    }

    /// Its shape.
    pub fn shape(&self) -> LinearShape {
        self.shape
    }
}

impl<L, S: LinearSaves> Layer for LinearOf<L, S> {
    type Params<V> = LinearParams<V>;
    type Saved<V> = S::Saved<V>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn product(&self) -> Option<LinearShape> {
        Some(self.shape)
    }

    fn params<V>(&self, mut each: impl FnMut(Part<'_>) -> V) -> LinearParams<V> {
        let LinearShape { n_in, n_out, .. } = self.shape;
        LinearParams {
            weight: each(Part { name: "weight", shape: &[n_out, n_in], init: self.init }),
            bias: self.has_bias.then(|| each(Part { name: "bias", shape: &[n_out], init: Init::Zeros })),
        }
    }

    fn saved<V>(&self, each: impl FnMut(SavedPart) -> V) -> S::Saved<V> {
        S::saved(self.shape.rows * self.shape.n_out, each)
    }
}

impl<L: Reads> Forward<'_, Linear<L>> {
    /// Multiplies `inp`. Overwrites its output.
    pub fn forward<D: Ops>(&mut self, dev: &D, inp: Rows<'_, L::From>, work: ViewMut<'_>) {
        let LinearParams { weight, bias } = self.params;
        dev.linear_forward(self.saved.out.reborrow(), inp.view(), weight, bias, work, self.of.shape);
    }

    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }

    /// Turns query and key heads of its output by their positions, in place.
    pub fn rotate<D: Ops>(&mut self, dev: &D, work: ViewMut<'_>, shape: AttentionShape, rotation: Rotation) {
        dev.rope(self.saved.out.reborrow(), work, shape, rotation);
    }
}

impl<L: Reads> Backward<'_, Linear<L>> {
    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }

    /// Turns the gradient of rotated query and key heads into that of the heads before the rotation, in
    /// place.
    pub fn rotate_back<D: Ops>(
        &self,
        dev: &D,
        dqkv: ViewMut<'_>,
        work: ViewMut<'_>,
        shape: AttentionShape,
        theta: f32,
    ) {
        dev.rope(dqkv, work, shape, Rotation { first: 0, theta, inverse: true });
    }
}

impl<L: Reads> Forward<'_, LinearGelu<L>> {
    /// Multiplies `inp` and applies GELU. Overwrites both.
    pub fn forward<D: Ops>(&mut self, dev: &D, inp: Rows<'_, L::From>, work: ViewMut<'_>) {
        let LinearParams { weight, bias } = self.params;
        let GeluSaved { pre, out } = &mut self.saved;
        let bias = bias.expect("GELU comes after a layer with a bias");
        dev.linear_gelu_forward(
            out.reborrow(),
            pre.reborrow(),
            inp.view(),
            weight,
            bias,
            work,
            self.of.shape,
        );
    }

    /// GELU of its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L: Reads> Backward<'_, LinearGelu<L>> {
    /// GELU of its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

impl<L: Reads> Forward<'_, LinearBranch<L>> {
    /// Multiplies `inp`. Overwrites `branch`.
    pub fn forward<D: Ops>(&self, dev: &D, branch: ViewMut<'_>, inp: Rows<'_, L::From>, work: ViewMut<'_>) {
        let LinearParams { weight, bias } = self.params;
        dev.linear_forward(branch, inp.view(), weight, bias, work, self.of.shape);
    }
}

impl<L: Reads, S: LinearSaves> Backward<'_, LinearOf<L, S>> {
    /// Overwrites its parameters' gradients.
    pub fn backward_weight<D: Ops>(
        &mut self,
        dev: &D,
        dout: View<'_>,
        inp: Rows<'_, L::From>,
        work: ViewMut<'_>,
    ) {
        let LinearParams { weight, bias } = &mut self.grads;
        let (dweight, dbias) = (weight.reborrow(), bias.as_mut().map(ViewMut::reborrow));
        dev.linear_backward_weight(dweight, dbias, dout, inp.view(), work, self.of.shape, false);
    }

    /// Overwrites `dinp`.
    pub fn backward_input<D: Ops>(&self, dev: &D, dinp: ViewMut<'_>, dout: View<'_>, work: ViewMut<'_>) {
        dev.linear_backward_input(dinp, dout, self.params.weight, work, self.of.shape);
    }

    /// Overwrites `dpre`, the gradient of what GELU was applied to.
    pub fn backward_gelu_input<D: Ops>(
        &self,
        dev: &D,
        dpre: ViewMut<'_>,
        dout: View<'_>,
        gelu: &Backward<'_, LinearGelu<L::From>>,
        work: ViewMut<'_>,
    ) {
        dev.linear_gelu_backward_input(dpre, dout, self.params.weight, gelu.saved.pre, work, self.of.shape);
    }
}

/// The largest scratch that a forward of any of these layers needs.
pub fn linear_forward_work<D: Ops>(layers: &[LinearShape], precision: Precision) -> usize {
    let Precision { param, activation, .. } = precision;
    let numel = |&shape: &LinearShape| D::linear_forward_work_numel(shape, activation, activation, param);
    layers.iter().map(numel).fold(0, usize::max)
}

/// The largest scratch that a backward of any of these layers needs.
pub fn linear_backward_work<D: Ops>(layers: &[LinearShape], precision: Precision) -> usize {
    let Precision { param, activation, grad } = precision;
    let numel = |&shape: &LinearShape| {
        let input = D::linear_backward_input_work_numel(shape, activation, activation, param);
        input.max(D::linear_backward_weight_work_numel(shape, grad, activation, activation))
    };
    layers.iter().map(numel).fold(0, usize::max)
}

/// Causal softmax attention over the fused projection that it reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention<L> {
    shape: AttentionShape,
    of: PhantomData<L>,
}

/// What an [`Attention`] saves.
pub struct AttentionSaved<V> {
    out: V,
    lse: V,
}

impl<L> Attention<L> {
    /// Of this shape.
    pub const fn new(shape: AttentionShape) -> Self {
        Attention { shape, of: PhantomData }
    }

    /// Its shape.
    pub fn shape(&self) -> AttentionShape {
        self.shape
    }
}

impl<L> Layer for Attention<L> {
    type Params<V> = Nothing;
    type Saved<V> = AttentionSaved<V>;

    fn name(&self) -> &'static str {
        "attention"
    }

    fn params<V>(&self, _: impl FnMut(Part<'_>) -> V) -> Nothing {
        Nothing
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> AttentionSaved<V> {
        let AttentionShape { n_heads, .. } = self.shape;
        AttentionSaved {
            out: each(SavedPart::activation("out", self.shape.rows() * self.shape.out_row())),
            lse: each(SavedPart::statistic("lse", self.shape.rows() * n_heads)),
        }
    }
}

impl<L: Reads> Forward<'_, Attention<L>> {
    /// Attention of whole sequences, or of new rows over those that are kept. Overwrites what it saves.
    pub fn forward<D: Ops>(
        &mut self,
        dev: &D,
        qkv: Rows<'_, L::From>,
        work: ViewMut<'_>,
        cached: Option<Cached<'_>>,
    ) {
        let AttentionSaved { out, lse } = &mut self.saved;
        let shape = self.of.shape;
        let Some(Cached { first, qkv: kept, work: scratch }) = cached else {
            return dev.attention_forward(out.reborrow(), lse.reborrow(), qkv.view(), work, shape);
        };
        let kept = kept.expect("a block keeps the projections of its rows");
        assert_eq!(shape.b, 1, "one text is generated at a time");
        let (row, all) = (shape.qkv_row(), first + shape.t);
        dev.cast(kept.view_mut().range(first * row..all * row), qkv.view());
        let so_far = AttentionShape { t: all, ..shape };
        dev.attention_cached(out.reborrow(), kept.view().range(0..all * row), scratch, so_far, shape.t);
    }

    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L: Reads> Backward<'_, Attention<L>> {
    /// Overwrites `dqkv`.
    pub fn backward<D: Ops>(
        &self,
        dev: &D,
        dqkv: ViewMut<'_>,
        dout: View<'_>,
        qkv: Rows<'_, L::From>,
        work: ViewMut<'_>,
    ) {
        let AttentionSaved { out, lse } = self.saved;
        dev.attention_backward(dqkv, dout, qkv.view(), out, lse, work, self.of.shape);
    }

    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

/// RMSNorm of some heads of the fused projection that it reads, each over its own channels, in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm<L> {
    name: &'static str,
    /// Rows of the projection.
    rows: usize,
    /// Where its heads are in a row.
    columns: Columns,
    n_heads: usize,
    d_head: usize,
    eps: f32,
    of: PhantomData<L>,
}

/// What a [`HeadNorm`] saves: the heads as they were.
pub struct HeadNormSaved<V> {
    rstd: V,
    heads: V,
}

impl<L> HeadNorm<L> {
    /// Of `n_heads` heads from head number `first` on of a projection of this shape.
    pub fn new(name: &'static str, shape: AttentionShape, first: usize, n_heads: usize, eps: f32) -> Self {
        let columns = Columns { row: shape.qkv_row(), first: first * shape.d_head };
        HeadNorm { name, rows: shape.rows(), columns, n_heads, d_head: shape.d_head, eps, of: PhantomData }
    }

    /// Elements of all heads.
    pub fn numel(&self) -> usize {
        self.rows * self.width()
    }

    /// Scratch of its backward.
    pub fn work_numel<D: Ops>(&self) -> usize {
        D::rms_norm_work_numel(self.rows * self.n_heads, self.d_head)
    }

    fn width(&self) -> usize {
        self.n_heads * self.d_head
    }

    /// The heads where they lie alone.
    fn alone(&self) -> Columns {
        Columns { row: self.width(), first: 0 }
    }
}

impl<L> Layer for HeadNorm<L> {
    type Params<V> = RmsNormParams<V>;
    type Saved<V> = HeadNormSaved<V>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn params<V>(&self, mut each: impl FnMut(Part<'_>) -> V) -> RmsNormParams<V> {
        RmsNormParams { weight: each(Part { name: "weight", shape: &[self.d_head], init: Init::Ones }) }
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> HeadNormSaved<V> {
        HeadNormSaved {
            rstd: each(SavedPart::statistic("rstd", self.rows * self.n_heads)),
            heads: each(SavedPart::activation("heads", self.numel())),
        }
    }
}

impl<L: Reads> Forward<'_, HeadNorm<L>> {
    /// Normalises its heads of the projection, in place. Overwrites what it saves, and `normed`, which has
    /// room for the heads.
    pub fn forward<D: Ops>(&mut self, dev: &D, qkv: &mut Forward<'_, Linear<L::From>>, normed: ViewMut<'_>) {
        let HeadNormSaved { rstd, heads } = &mut self.saved;
        let (qkv, layer) = (&mut qkv.saved.out, self.of);
        let mut normed = normed.range(0..layer.numel());
        dev.copy_columns(heads.reborrow(), layer.alone(), qkv.as_view(), layer.columns, layer.width());
        dev.rms_norm_forward(
            normed.reborrow(),
            rstd.reborrow(),
            heads.as_view(),
            self.params.weight,
            layer.eps,
        );
        dev.copy_columns(qkv.reborrow(), layer.columns, normed.as_view(), layer.alone(), layer.width());
    }
}

/// Scratch of a [`HeadNorm`]'s backward.
pub struct HeadNormWork<'a> {
    /// Room for the gradient of its normed heads.
    pub dout: ViewMut<'a>,
    /// Room for that of the heads.
    pub dinp: ViewMut<'a>,
    /// Scratch of the norm.
    pub work: ViewMut<'a>,
}

impl HeadNormWork<'_> {
    /// A shorter borrow of the same.
    pub fn reborrow(&mut self) -> HeadNormWork<'_> {
        HeadNormWork { dout: self.dout.reborrow(), dinp: self.dinp.reborrow(), work: self.work.reborrow() }
    }
}

impl<L: Reads> Backward<'_, HeadNorm<L>> {
    /// Turns the gradient of its normed heads into that of the heads, in their columns of `dqkv`. Overwrites
    /// its parameter's gradient.
    pub fn backward<D: Ops>(&mut self, dev: &D, mut dqkv: ViewMut<'_>, scratch: HeadNormWork<'_>) {
        let layer = self.of;
        let (mut dout, mut dinp) =
            (scratch.dout.range(0..layer.numel()), scratch.dinp.range(0..layer.numel()));
        dev.copy_columns(dout.reborrow(), layer.alone(), dqkv.as_view(), layer.columns, layer.width());
        dev.fill_bytes(dinp.reborrow(), 0);
        let (dweight, weight) = (self.grads.weight.reborrow(), self.params.weight);
        let HeadNormSaved { rstd, heads } = self.saved;
        dev.rms_norm_backward(dinp.reborrow(), dweight, dout.as_view(), heads, weight, rstd, scratch.work);
        dev.copy_columns(dqkv.reborrow(), layer.columns, dinp.as_view(), layer.alone(), layer.width());
    }
}

/// The residual stream within a block, after its attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sum<L> {
    numel: usize,
    of: PhantomData<L>,
}

impl<L> Sum<L> {
    /// Of so many elements.
    pub const fn new(numel: usize) -> Self {
        Sum { numel, of: PhantomData }
    }
}

impl<L> Layer for Sum<L> {
    type Params<V> = Nothing;
    type Saved<V> = OutputSaved<V>;

    fn name(&self) -> &'static str {
        "sum"
    }

    fn params<V>(&self, _: impl FnMut(Part<'_>) -> V) -> Nothing {
        Nothing
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> OutputSaved<V> {
        OutputSaved { out: each(SavedPart::activation("out", self.numel)) }
    }
}

impl<L> Forward<'_, Sum<L>> {
    /// Adds a branch to the residual stream. Overwrites the sum.
    pub fn forward<D: Ops>(&mut self, dev: &D, residual: Rows<'_, Residual>, branch: View<'_>) {
        dev.add(self.saved.out.reborrow(), residual.view(), branch);
    }

    /// The sum.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L> Backward<'_, Sum<L>> {
    /// The sum.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

/// `silu(gate) * up` of the fused projection that it reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Swiglu<L> {
    rows: usize,
    f: usize,
    of: PhantomData<L>,
}

impl<L> Swiglu<L> {
    /// Of `rows` rows of `f` elements.
    pub const fn new(rows: usize, f: usize) -> Self {
        Swiglu { rows, f, of: PhantomData }
    }
}

impl<L> Layer for Swiglu<L> {
    type Params<V> = Nothing;
    type Saved<V> = OutputSaved<V>;

    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn params<V>(&self, _: impl FnMut(Part<'_>) -> V) -> Nothing {
        Nothing
    }

    fn saved<V>(&self, mut each: impl FnMut(SavedPart) -> V) -> OutputSaved<V> {
        OutputSaved { out: each(SavedPart::activation("out", self.rows * self.f)) }
    }
}

impl<L: Reads> Forward<'_, Swiglu<L>> {
    /// Overwrites its output.
    pub fn forward<D: Ops>(&mut self, dev: &D, gate_up: Rows<'_, L::From>) {
        dev.swiglu_forward(self.saved.out.reborrow(), gate_up.view(), self.of.f);
    }

    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out.as_view())
    }
}

impl<L: Reads> Backward<'_, Swiglu<L>> {
    /// Overwrites `dgate_up`.
    pub fn backward<D: Ops>(
        &self,
        dev: &D,
        dgate_up: ViewMut<'_>,
        dout: View<'_>,
        gate_up: Rows<'_, L::From>,
    ) {
        dev.swiglu_backward(dgate_up, dout, gate_up.view(), self.of.f);
    }

    /// Its output.
    pub fn out(&self) -> Rows<'_, L> {
        Rows::new(self.saved.out)
    }
}

/// Rows that are looked up, or an output matrix: `n` rows of `c` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table<L> {
    name: &'static str,
    n: usize,
    c: usize,
    init: Init,
    of: PhantomData<L>,
}

/// The parameter of a [`Table`].
pub struct TableParams<V> {
    /// (n, C).
    pub weight: V,
}

impl<L> Table<L> {
    /// Of `n` rows of `c` elements.
    pub const fn new(name: &'static str, n: usize, c: usize, init: Init) -> Self {
        Table { name, n, c, init, of: PhantomData }
    }
}

impl<L> Layer for Table<L> {
    type Params<V> = TableParams<V>;
    type Saved<V> = Nothing;

    fn name(&self) -> &'static str {
        self.name
    }

    fn params<V>(&self, mut each: impl FnMut(Part<'_>) -> V) -> TableParams<V> {
        TableParams { weight: each(Part { name: "weight", shape: &[self.n, self.c], init: self.init }) }
    }

    fn saved<V>(&self, _: impl FnMut(SavedPart) -> V) -> Nothing {
        Nothing
    }
}

impl<L> Forward<'_, Table<L>> {
    /// (n, C).
    pub fn weight(&self) -> View<'_> {
        self.params.weight
    }
}
