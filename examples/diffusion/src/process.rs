//! The process that turns an image into noise in many steps, and noise into an image in a few.

use fulmen::cli::clap;
use fulmen::prelude::*;

/// The noise schedule.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum NoiseSchedule {
    /// Ho et al. 2020: the added variance increases linearly.
    Linear,
    /// Nichol and Dhariwal 2021: the remaining variance of the image follows a squared cosine.
    Cosine,
}

/// The amount of noise at each time step.
pub(crate) struct Process {
    /// The remaining fraction of the image's variance after each time step.
    alphas_cumprod: Vec<f64>,
}

impl Process {
    pub(crate) fn new(schedule: NoiseSchedule, timesteps: usize) -> Process {
        let fraction = |t: usize| t as f64 / timesteps as f64;
        let remaining =
            |t: usize| ((fraction(t) + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
        let beta = |t: usize| match schedule {
            // From 0.0001 to 0.02 over 1000 steps.
            NoiseSchedule::Linear => {
                (1000.0 / timesteps as f64 * (1e-4 + fraction(t) * 0.0199)).min(0.999)
            }
            NoiseSchedule::Cosine => (1.0 - remaining(t + 1) / remaining(t)).min(0.999),
        };
        let mut product = 1.0;
        let alphas_cumprod = (0..timesteps).map(|t| {
            product *= 1.0 - beta(t);
            product
        });
        Process { alphas_cumprod: alphas_cumprod.collect() }
    }

    pub(crate) fn timesteps(&self) -> usize {
        self.alphas_cumprod.len()
    }

    /// Noisy versions of images `f32[batch, …]` at time steps `i32[batch]`.
    pub(crate) fn add_noise(&self, images: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        let alphas: Vec<f32> = self.alphas_cumprod.iter().map(|&alpha| alpha as f32).collect();
        let alpha = Tensor::from_slice(&alphas, [alphas.len()]).take(0, timesteps).reshape([
            timesteps.size(0),
            1,
            1,
            1,
        ]);
        images * alpha.sqrt() + noise * (1.0 - alpha).sqrt()
    }

    /// Draws images from noise `f32[batch, …]` in `steps` steps (DDIM, Song et al. 2020). `predict`
    /// estimates the noise at time steps `i32[batch]`.
    ///
    /// The steps are unrolled, because XLA's convolutions on a CPU are about ten times slower in a
    /// loop.
    pub(crate) fn sample(
        &self,
        noise: &Tensor,
        steps: usize,
        predict: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let timesteps: Vec<usize> =
            (1..=steps).rev().map(|i| i * self.timesteps() / steps - 1).collect();
        let mut x = noise.clone();
        for (i, &t) in timesteps.iter().enumerate() {
            let alpha = self.alphas_cumprod[t];
            let next_alpha = timesteps.get(i + 1).map_or(1.0, |&t| self.alphas_cumprod[t]);
            let predicted_noise = predict(&x, &Tensor::full(DType::I32, [noise.size(0)], t as f64));
            let image =
                ((&x - predicted_noise * (1.0 - alpha).sqrt()) / alpha.sqrt()).clamp(-1.0, 1.0);
            let noise = (x - &image * alpha.sqrt()) / (1.0 - alpha).sqrt();
            x = image * next_alpha.sqrt() + noise * (1.0 - next_alpha).sqrt();
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the true noise, each step is exact for any schedule and any number of steps.
    #[test]
    fn sampling_with_the_true_noise_restores_the_image() {
        let image = Tensor::from_slice(&[0.5f32, -0.25, 1.0, -1.0], [1, 1, 2, 2]);
        let noise = Tensor::from_slice(&[0.3f32, -1.2, 0.7, 2.0], [1, 1, 2, 2]);
        let samples = [NoiseSchedule::Linear, NoiseSchedule::Cosine].map(|schedule| {
            let process = Process::new(schedule, 100);
            assert!(
                process.alphas_cumprod.windows(2).all(|pair| pair[1] < pair[0]),
                "{:?}",
                process.alphas_cumprod
            );
            assert!(
                process.alphas_cumprod[0] > 0.99 && process.alphas_cumprod[99] < 1e-4,
                "{:?}",
                process.alphas_cumprod
            );
            let noisy = process.add_noise(&image, &noise, &Tensor::from_slice(&[99i32], [1]));
            process.sample(&noisy, 7, |_, _| noise.clone())
        });
        for sample in samples {
            let actual = sample.eval().unwrap().to_vec::<f32>().unwrap();
            let error = actual
                .iter()
                .zip([0.5, -0.25, 1.0, -1.0])
                .fold(0.0f32, |max, (x, y)| max.max((x - y).abs()));
            assert!(error < 1e-2, "{actual:?}");
        }
    }
}
