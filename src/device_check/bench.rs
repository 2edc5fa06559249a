//! Buffers, errors and times: what every case needs.

use crate::backend::memory::Memory;
use crate::backend::{Arena, Buf, Device, Queue};
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::slots::{ALIGN, Slot};
use crate::random::SplitMix64;
use crate::telemetry::MemKind;
use half::bf16;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;

/// Rows of activations in a check.
pub const ROWS: usize = 39;
/// Tokens per sequence; divides [`ROWS`].
pub const T: usize = 13;
/// Width.
pub const C: usize = 72;

/// One rounding to bf16.
pub const ONE_ROUNDING: f64 = 1.0 / 256.0;

/// Error and speed of one kernel on elements of one type.
#[derive(Debug, Clone, Serialize)]
pub struct KernelResult {
    /// Its name, e.g. `layer_norm_forward`.
    pub kernel: Cow<'static, str>,
    /// Type of activations.
    pub dtype: &'static str,
    /// Largest error of an element: `|got - want| / max(1, |want|)`.
    pub error: f64,
    /// Largest error allowed.
    pub tolerance: f64,
    /// Whether `error` is within `tolerance`.
    pub passed: bool,
    /// Shape it was timed on.
    pub shape: String,
    /// Time of one call, the best of several.
    pub ms: f64,
    /// Bytes it must read and write, each once, over that time, in GB/s.
    pub gb_per_s: f64,
    /// Floating-point operations over that time, in TFLOP/s; 0 for kernels bound by memory.
    pub tflop_per_s: f64,
}

/// Sizes of the shapes that kernels are timed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Rows of activations.
    pub rows: usize,
    /// Tokens per sequence; divides `rows`.
    pub t: usize,
    /// Width.
    pub c: usize,
    /// Heads; divides `c`.
    pub n_heads: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Calls of each kernel, of which the best counts.
    pub n_calls: usize,
}

impl Scale {
    /// GPT-2 124M on micro-batches of 16 sequences.
    pub const GPT2: Scale =
        Scale { rows: 16 * 1024, t: 1024, c: 768, n_heads: 12, vocab: 50257, n_calls: 10 };
    /// Small enough for a CPU to finish at once.
    pub const SMALL: Scale = Scale { rows: 64, t: 16, c: 48, n_heads: 3, vocab: 97, n_calls: 1 };
}

/// Scratch that the kernels of any backend take on the shapes of a check, on top of what scales with the
/// shape.
const FIXED_BYTES: usize = 256 << 20;

/// Bytes that the largest case takes: the widest activations three times, logits and their head, and scratch.
pub fn arena_bytes(scale: &Scale) -> usize {
    let Scale { rows, c, vocab, .. } = *scale;
    let chunk = rows.min(1024);
    FIXED_BYTES + 4 * (4 * rows * 4 * c + 3 * vocab * c + 3 * chunk * vocab)
}

/// Runs cases on one device with elements of one type.
pub struct Bench<'a, D: Device> {
    /// What is checked.
    pub device: &'a D,
    /// Of parameters and activations.
    pub dtype: DType,
    /// What is timed.
    pub scale: Scale,
    /// What was found.
    pub rows: Vec<KernelResult>,
    arena: &'a Arc<Arena>,
    memory: Memory<D>,
    /// Where the next buffer begins.
    end: usize,
    seed: u64,
}

/// A kernel ready to be timed.
pub struct Timed<'a> {
    /// In words.
    pub shape: String,
    /// Read and written by a call, each once.
    pub bytes: usize,
    /// Of a call; 0 where memory bounds it.
    pub flops: f64,
    /// One call.
    pub call: Box<dyn FnMut() + 'a>,
}

impl<'a, D: Device> Bench<'a, D> {
    /// Nothing is found yet.
    pub fn new(device: &'a D, arena: &'a Arc<Arena>, dtype: DType, scale: Scale) -> Self {
        let memory = Memory::new(Arc::clone(arena), false);
        Bench { device, dtype, scale, rows: Vec::new(), arena, memory, end: 0, seed: 0 }
    }

    /// A buffer of zeros.
    pub fn zeros(&mut self, dtype: DType, numel: usize) -> Buf {
        let mut slot = Slot::always("a case's".into(), MemKind::Workspace, numel, dtype);
        slot.offset = self.end;
        self.end += slot.bytes().next_multiple_of(ALIGN);
        let mut buf = self.memory.take(self.device, &slot, slot.kind, Queue::Compute);
        self.device.fill_bytes(buf.view_mut(), 0);
        buf
    }

    /// A buffer of NaN, which shows what is not overwritten.
    pub fn unwritten(&mut self, dtype: DType, numel: usize) -> Buf {
        let mut buf = self.zeros(dtype, numel);
        self.device.fill_bytes(buf.view_mut(), 0xff);
        buf
    }

    /// Numbers in [-1, 1), rounded to a type: in a buffer, and as they are.
    pub fn numbers(&mut self, dtype: DType, numel: usize) -> Result<(Buf, Vec<f64>)> {
        let values: Vec<f32> = self
            .words(numel)
            .map(|word| (word >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .map(|x| if dtype == DType::Bf16 { bf16::from_f32(x).to_f32() } else { x })
            .collect();
        let buf = self.filled(dtype, &values)?;
        Ok((buf, values.into_iter().map(f64::from).collect()))
    }

    /// A buffer of these numbers, which `dtype` has.
    pub fn filled(&mut self, dtype: DType, values: &[f32]) -> Result<Buf> {
        let mut buf = self.zeros(dtype, values.len());
        let rounded: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        let bytes =
            if dtype == DType::Bf16 { bytemuck::cast_slice(&rounded) } else { bytemuck::cast_slice(values) };
        self.device.upload(buf.view_mut(), bytes)?;
        Ok(buf)
    }

    /// Token ids below `vocab`.
    pub fn tokens(&mut self, numel: usize, vocab: usize) -> Result<(Buf, Vec<u32>)> {
        let tokens: Vec<u32> = self.words(numel).map(|word| (word >> 33) as u32 % vocab as u32).collect();
        let mut buf = self.zeros(DType::U32, numel);
        self.device.upload(buf.view_mut(), bytemuck::cast_slice(&tokens))?;
        Ok((buf, tokens))
    }

    /// Another sequence at each call.
    fn words(&mut self, numel: usize) -> impl Iterator<Item = u64> + use<D> {
        self.seed += 1;
        SplitMix64::stream(self.seed).take(numel)
    }

    /// Runs a case: `check` gives outputs and what they should be, `prepare` a call to time. `tolerance` is
    /// for f32 and bf16.
    pub fn case(
        &mut self,
        kernel: impl Into<Cow<'static, str>>,
        [of_f32, of_bf16]: [f64; 2],
        check: impl FnOnce(&mut Self) -> Result<Vec<(Buf, Vec<f64>)>>,
        prepare: impl FnOnce(&mut Self) -> Result<Timed<'a>>,
    ) -> Result<()> {
        let kernel = kernel.into();
        let mut error = 0.0f64;
        for (got, want) in check(self)? {
            let got = self.device.read(got.view())?;
            assert_eq!(got.len(), want.len(), "elements of {kernel}");
            // NaN sorts as the worst of all.
            let errors =
                got.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).abs() / want.abs().max(1.0));
            error = errors.fold(error, |a, b| if a.total_cmp(&b).is_ge() { a } else { b });
        }
        self.begin_anew();
        let Timed { shape, bytes, flops, mut call } = prepare(self)?;
        let ms = self.best_ms(&mut call)?;
        drop(call);
        self.begin_anew();
        let tolerance = if self.dtype == DType::Bf16 { of_bf16 } else { of_f32 };
        self.rows.push(KernelResult {
            kernel,
            dtype: self.dtype.name(),
            error,
            tolerance,
            passed: error <= tolerance,
            shape,
            ms,
            gb_per_s: bytes as f64 / ms / 1e6,
            tflop_per_s: flops / ms / 1e9,
        });
        Ok(())
    }

    /// All buffers are gone.
    fn begin_anew(&mut self) {
        self.memory = Memory::new(Arc::clone(self.arena), false);
        self.end = 0;
    }

    /// Time of the best of several calls, after one to warm up.
    fn best_ms(&self, call: &mut dyn FnMut()) -> Result<f64> {
        call();
        let mut best = f64::INFINITY;
        for _ in 0..self.scale.n_calls {
            let start = self.device.mark(Queue::Compute);
            call();
            let end = self.device.mark(Queue::Compute);
            let (start, end) = (self.device.when(&start)?, self.device.when(&end)?);
            best = best.min(end.saturating_duration_since(start).as_secs_f64() * 1e3);
        }
        Ok(best.max(1e-6))
    }
}
