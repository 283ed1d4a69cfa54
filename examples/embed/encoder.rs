//! The encoder: BERT with attention as a live break, captured for one bucket of tokens.

use crate::blas::Blas;
use crate::error::{EmbedError, Result};
use crate::model_files::{Config, ModelFiles, Weights};
use crate::text::Packed;
use breakable_cuda_graph::demo::{Ops, Weight};
use breakable_cuda_graph::driver::{Context, Stream};
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, CapturePool, DType, Error, ReplayOptions, Scope, Tensor, active_forward,
    current_stream, eager, empty,
};

/// What attention reads live: where each sentence of the batch begins.
struct Batch {
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
    query: Linear,
    key: Linear,
    value: Linear,
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

/// A model with its stream, pool and static inputs for one bucket.
pub struct Encoder<'m> {
    model: &'m Model,
    stream: Stream,
    pool: CapturePool,
    /// Token ids, padded with -1, and places, padded with 0.
    ids: Tensor,
    places: Tensor,
    captured: Option<(BreakableCapture<'m>, Tensor)>,
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
                        query: loader.linear(&at("attention.self.query"), hidden, hidden)?,
                        key: loader.linear(&at("attention.self.key"), hidden, hidden)?,
                        value: loader.linear(&at("attention.self.value"), hidden, hidden)?,
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

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How matrix products are computed.
    pub fn products(&self) -> &str {
        self.blas.as_ref().map_or("the demo kernel", Blas::name)
    }

    /// The hidden states `[tokens, hidden]` of padded ids and places.
    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, ids: &Tensor, places: &Tensor) -> Result<Tensor, Error> {
        let h = self.ops.embed(ids, places, [&self.words, &self.positions, &self.types])?;
        let mut h = self.ops.layer_norm(&h, None, &self.norm.gamma, &self.norm.beta, self.config.epsilon)?;
        for layer in &self.layers {
            let [q, k, v] = [&layer.query, &layer.key, &layer.value].map(|linear| self.linear(&h, linear));
            let (q, k, v) = (q?, k?, v?);
            let attended = scope.break_point("attention", [&q, &k, &v], move |b| {
                // The handoff itself from the first replay on: no copy, and the rows past the sentences are zeroed.
                let y = match b.output(0) {
                    Some(handoff) => handoff,
                    None => b.tensor(DType::F32, b.input(0)?.shape())?,
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
        blas.product(&stream, x, &linear.weight, &y).map_err(|error| match error {
            EmbedError::Library(error) => error,
            other => Error::user(other),
        })?;
        self.ops.add_bias(&stream, &linear.bias, &y)?;
        Ok(y)
    }
}

impl<'m> Encoder<'m> {
    pub fn new(model: &'m Model, context: &Context, bucket: usize) -> Result<Encoder<'m>> {
        let stream = Stream::new(context)?;
        Ok(Encoder {
            model,
            pool: CapturePool::new(context)?,
            ids: Tensor::empty(context, DType::I32, &[bucket])?,
            places: Tensor::empty(context, DType::I32, &[bucket])?,
            stream,
            captured: None,
        })
    }

    /// Fills the static inputs, and the context that attention reads.
    fn fill(&self, batch: &Packed) -> Result<Batch> {
        let padded = |values: &[i32], with: i32| {
            let mut padded = values.to_vec();
            padded.resize(self.ids.elements(), with);
            padded
        };
        self.ids.write(&self.stream, &padded(&batch.ids, -1))?;
        self.places.write(&self.stream, &padded(&batch.places, 0))?;
        Ok(Batch { offsets: Tensor::from_slice(&self.stream, &batch.offsets, &[batch.offsets.len()])? })
    }

    /// One vector of length 1 a sentence, without capture.
    pub fn eager(&self, packed: &Packed) -> Result<Vec<Vec<f32>>> {
        let batch = self.fill(packed)?;
        let hidden = active_forward(&batch, || {
            eager(&self.pool, &self.stream, |scope| self.model.forward(scope, &self.ids, &self.places))
        })?;
        self.pooled(&hidden, &batch)
    }

    /// The same by replaying the capture, which the first call makes.
    pub fn captured(&mut self, packed: &Packed) -> Result<Vec<Vec<f32>>> {
        let batch = self.fill(packed)?;
        if self.captured.is_none() {
            // Whatever is made at first use is made before the capture.
            active_forward(&batch, || {
                eager(&self.pool, &self.stream, |scope| self.model.forward(scope, &self.ids, &self.places))
            })?;
            let options = CaptureOptions::default().name("encoder").bucket(self.ids.elements());
            let mut capture = BreakableCapture::with_options(&self.pool, options)?;
            let hidden = active_forward(&batch, || {
                capture.record(&self.stream, |scope| self.model.forward(scope, &self.ids, &self.places))
            })?;
            self.captured = Some((capture, hidden));
        }
        let Some((capture, hidden)) = &mut self.captured else { return Ok(Vec::new()) };
        let options = ReplayOptions::default().valid_rows(packed.tokens());
        let _ = active_forward(&batch, || capture.replay_with(&self.stream, options))?;
        let hidden = hidden.clone();
        self.pooled(&hidden, &batch)
    }

    /// What the capture is made of, once there is one.
    pub fn report(&self) -> Option<String> {
        let (capture, _) = self.captured.as_ref()?;
        let (report, usage) = (capture.report(), self.pool.usage().ok()?);
        Some(format!(
            "{} segments and breaks, {} launches, {} nodes, {} pool bytes",
            report.segments,
            report.launches,
            report.nodes.total(),
            usage.reserved
        ))
    }

    fn pooled(&self, hidden: &Tensor, batch: &Batch) -> Result<Vec<Vec<f32>>> {
        let pooled = eager(&self.pool, &self.stream, |_| self.model.ops.mean_pool(hidden, &batch.offsets))?;
        let values: Vec<f32> = pooled.read(&self.stream)?;
        Ok(values.chunks(self.model.config.hidden).map(<[f32]>::to_vec).collect())
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

    fn norm(&self, name: &str, width: usize) -> Result<Norm> {
        Ok(Norm {
            gamma: self.tensor(&format!("{name}.weight"), &[width])?,
            beta: self.tensor(&format!("{name}.bias"), &[width])?,
        })
    }
}
