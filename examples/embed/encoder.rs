//! The encoder: BERT with attention as a live break, behind the prefill runner.

use super::batches::Packed;
use super::blas::Blas;
use super::error::Result;
use super::model_files::{Config, ModelFiles, Weights};
use super::support::demo::{Ops, Weight};
use breakable_cuda_graph::driver::{Context, Stream};
use breakable_cuda_graph::prefill::{
    self, CaptureProgress, InputData, InputSpec, MemoryPlan, Mode, OutputSpec, TailRule, expect_inputs,
};
use breakable_cuda_graph::{
    DType, Error, PrefillModel, PrefillRunner, RunnerOptions, Scope, Tensor, current_stream, eager, empty,
};

/// What attention reads live: where each sentence of the batch begins.
pub struct Batch {
    offsets: Tensor,
}

struct Linear {
    weight: Tensor,
    bias: Tensor,
}

struct Norm {
    gamma: Tensor,
    beta: Tensor,
}

struct Layer {
    /// Query, key and value side by side.
    projections: Linear,
    output: Linear,
    output_norm: Norm,
    widen: Linear,
    narrow: Linear,
    norm: Norm,
}

/// The weights on the device, and the operations.
pub struct Model {
    ops: Ops,
    blas: Option<Blas>,
    config: Config,
    words: Tensor,
    positions: Tensor,
    types: Tensor,
    norm: Norm,
    layers: Vec<Layer>,
}

/// A model with its runner.
pub struct Encoder<'m> {
    model: &'m Model,
    runner: PrefillRunner<'m, Model>,
    offsets: Tensor,
    stream: Stream,
}

impl Model {
    pub fn load(files: &ModelFiles, context: &Context, blas: Option<Blas>) -> Result<Model> {
        let config = files.config()?;
        let stream = Stream::new(context)?;
        let ops = Ops::load(context)?;
        files.with_weights(|weights| {
            let loader = Loader { weights, stream: &stream };
            let (hidden, inner) = (config.hidden, config.inner);
            let layers = (0..config.layers)
                .map(|layer| {
                    let at = |name: &str| format!("encoder.layer.{layer}.{name}");
                    Ok(Layer {
                        projections: loader.side_by_side(
                            &["query", "key", "value"].map(|part| at(&format!("attention.self.{part}"))),
                            hidden,
                            hidden,
                        )?,
                        output: loader.linear(&at("attention.output.dense"), hidden, hidden)?,
                        output_norm: loader.norm(&at("attention.output.LayerNorm"), hidden)?,
                        widen: loader.linear(&at("intermediate.dense"), inner, hidden)?,
                        narrow: loader.linear(&at("output.dense"), hidden, inner)?,
                        norm: loader.norm(&at("output.LayerNorm"), hidden)?,
                    })
                })
                .collect::<Result<_>>()?;
            Ok(Model {
                words: loader.tensor("embeddings.word_embeddings.weight", &[config.vocabulary, hidden])?,
                positions: loader.tensor("embeddings.position_embeddings.weight", &[config.positions, hidden])?,
                types: loader.tensor("embeddings.token_type_embeddings.weight", &[config.types, hidden])?,
                norm: loader.norm("embeddings.LayerNorm", hidden)?,
                layers,
                ops,
                blas,
                config,
            })
        })
    }

    /// How matrix products are computed.
    pub fn products(&self) -> &str {
        self.blas.as_ref().map_or("the demo kernel", Blas::name)
    }

    /// The hidden states `[tokens, hidden]` of padded ids and places.
    fn hidden<'m>(&'m self, scope: &Scope<'_, 'm>, ids: &Tensor, places: &Tensor) -> Result<Tensor, Error> {
        let h = self.ops.embed(ids, places, [&self.words, &self.positions, &self.types])?;
        let mut h = self.ops.layer_norm(&h, None, &self.norm.gamma, &self.norm.beta, self.config.epsilon)?;
        for layer in &self.layers {
            let (all, width) = (self.linear(&h, &layer.projections)?, self.config.hidden);
            let [q, k, v] = [0, 1, 2].map(|part| all.narrow(1, part * width, width));
            let (q, k, v) = (q?, k?, v?);
            let attended = scope.break_point("attention", [&q, &k, &v], move |b| {
                // The handoff itself from the first replay on: no copy, and the rows past the sentences are zeroed.
                let y = match b.output(0) {
                    Some(handoff) => handoff,
                    None => b.empty(DType::F32, b.input(0)?.shape())?,
                };
                let offsets = &b.forward_ctx::<Batch>()?.offsets;
                self.ops.attention_into(
                    b.stream(),
                    [b.input(0)?, b.input(1)?, b.input(2)?],
                    offsets,
                    self.config.heads,
                    &y,
                )?;
                Ok(y)
            })?;
            let x = self.linear(&attended, &layer.output)?;
            h = self.ops.layer_norm(
                &x,
                Some(&h),
                &layer.output_norm.gamma,
                &layer.output_norm.beta,
                self.config.epsilon,
            )?;
            let wide = self.ops.gelu(&self.linear(&h, &layer.widen)?)?;
            let x = self.linear(&wide, &layer.narrow)?;
            h = self.ops.layer_norm(&x, Some(&h), &layer.norm.gamma, &layer.norm.beta, self.config.epsilon)?;
        }
        Ok(h)
    }

    fn linear(&self, x: &Tensor, linear: &Linear) -> Result<Tensor, Error> {
        let Some(blas) = &self.blas else {
            return self.ops.linear(x, Weight::Transposed(&linear.weight), Some(&linear.bias));
        };
        let y = empty(DType::F32, &[x.rows(), linear.weight.rows()])?;
        let stream = current_stream()?;
        blas.product(&stream, x, &linear.weight, &y)?;
        self.ops.add_bias(&stream, &linear.bias, &y)?;
        Ok(y)
    }
}

impl PrefillModel for Model {
    type Context = Batch;
    type Key = ();

    fn inputs(&self) -> Vec<InputSpec> {
        // An id of -1 embeds as zeros.
        let ids = InputSpec::rows("ids", DType::I32, &[]).tail(TailRule::DummySlot(-1));
        vec![ids, InputSpec::rows("places", DType::I32, &[]).tail(TailRule::Zero)]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("hidden", DType::F32, &[self.config.hidden])]
    }

    fn key(&self) {}

    fn dummy(&self, stream: &Stream, rows: usize) -> Result<Batch, Error> {
        // As many sentences as are likely, as attention takes the square of their lengths.
        let offsets: Vec<i32> = (0..rows).step_by(16).chain([rows]).map(|offset| offset as i32).collect();
        Ok(Batch { offsets: Tensor::from_slice(stream, &offsets, &[offsets.len()])? })
    }

    fn mode(&self, _: &Batch) -> Mode<()> {
        Mode::Eligible(())
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [ids, places] = expect_inputs(inputs)?;
        Ok(vec![self.hidden(scope, ids, places)?])
    }
}

/// How a batch is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// As the runner decides.
    Runner,
    /// Eagerly, with no padding.
    Eager,
    /// Eagerly, padded to these rows as a replay would be.
    Padded(usize),
}

impl<'m> Encoder<'m> {
    pub fn new(model: &'m Model, context: &Context, options: RunnerOptions) -> Result<Encoder<'m>> {
        let stream = Stream::new(context)?;
        let runner = PrefillRunner::new(model, context, options)?;
        Ok(Encoder { model, runner, offsets: Tensor::allocate(context, DType::I32, &[0])?, stream })
    }

    /// Captures all buckets.
    pub fn capture(&mut self, progress: impl FnMut(&CaptureProgress)) -> Result<()> {
        Ok(self.runner.capture_all(&self.stream, progress)?)
    }

    /// What the captures of all buckets will take.
    pub fn plan(&mut self) -> Result<MemoryPlan> {
        Ok(self.runner.plan(&self.stream)?)
    }

    pub fn runner(&self) -> &PrefillRunner<'m, Model> {
        &self.runner
    }

    /// One vector of length 1 a sentence, and the bucket that was replayed.
    pub fn run(&mut self, packed: &Packed, how: How) -> Result<(Vec<Vec<f32>>, Option<usize>)> {
        let offsets = self.offsets(packed)?;
        let context = Batch { offsets };
        let inputs = [InputData::host(&packed.ids), InputData::host(&packed.places)];
        let batch = prefill::Batch { rows: packed.tokens(), context: &context, inputs: &inputs };
        let outputs = match how {
            How::Runner => self.runner.run(&self.stream, &batch)?,
            How::Eager => self.runner.run_eager(&self.stream, &batch)?,
            How::Padded(bucket) => self.runner.run_eager_in(&self.stream, &batch, bucket)?,
        };
        let bucket = outputs.bucket();
        if packed.members.is_empty() {
            return Ok((Vec::new(), bucket));
        }
        let (hidden, model) = (outputs.tensor(0)?, self.model);
        let pooled = eager(outputs.pool(), &self.stream, |_| model.ops.mean_pool(&hidden, &context.offsets))?;
        let values: Vec<f32> = pooled.read(&self.stream)?;
        Ok((values.chunks(model.config.hidden).map(<[f32]>::to_vec).collect(), bucket))
    }

    /// The offsets on the device, in memory that batches share. Each batch's outputs are read before the next one is written.
    fn offsets(&mut self, packed: &Packed) -> Result<Tensor> {
        let count = packed.offsets.len();
        if self.offsets.rows() < count {
            self.offsets = Tensor::allocate(self.stream.context(), DType::I32, &[count.next_power_of_two()])?;
        }
        let offsets = self.offsets.leading_rows(count);
        offsets.write(&self.stream, &packed.offsets)?;
        Ok(offsets)
    }
}

/// Puts weights on the device.
struct Loader<'a> {
    weights: &'a Weights<'a>,
    stream: &'a Stream,
}

impl Loader<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_slice(self.stream, &self.weights.get(name, shape)?, shape)?)
    }

    fn linear(&self, name: &str, columns: usize, inner: usize) -> Result<Linear> {
        Ok(Linear {
            weight: self.tensor(&format!("{name}.weight"), &[columns, inner])?,
            bias: self.tensor(&format!("{name}.bias"), &[columns])?,
        })
    }

    /// One product of several that have the same factor.
    fn side_by_side(&self, names: &[String], columns: usize, inner: usize) -> Result<Linear> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weight.extend(self.weights.get(&format!("{name}.weight"), &[columns, inner])?);
            bias.extend(self.weights.get(&format!("{name}.bias"), &[columns])?);
        }
        let all = names.len() * columns;
        Ok(Linear {
            weight: Tensor::from_slice(self.stream, &weight, &[all, inner])?,
            bias: Tensor::from_slice(self.stream, &bias, &[all])?,
        })
    }

    fn norm(&self, name: &str, width: usize) -> Result<Norm> {
        Ok(Norm {
            gamma: self.tensor(&format!("{name}.weight"), &[width])?,
            beta: self.tensor(&format!("{name}.bias"), &[width])?,
        })
    }
}
