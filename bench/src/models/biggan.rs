//! BigGAN with the hinge loss: a step of the discriminator and one of the generator.

use fulmen::models::biggan::{Config, Discriminator, Generator};
use fulmen::nn::RandomStream;
use fulmen::nn::loss::GanLoss;
use fulmen::prelude::*;
use fulmen::tensor::random;

/// Trains on images `x` with classes `y`.
#[derive(Module)]
pub(crate) struct BigGan {
    generator: Generator,
    discriminator: Discriminator,
    noise: RandomStream,
    dim_z: usize,
}

impl BigGan {
    pub(crate) fn new(config: &Config) -> fulmen::models::Result<BigGan> {
        let generator = Generator::new(config)?;
        let discriminator = Discriminator::new(config)?;
        Ok(BigGan { generator, discriminator, noise: RandomStream::new(), dim_z: config.dim_z })
    }
}

impl TrainingModule for BigGan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let real = batch.get("x");
        let classes = batch.get("y");
        let count = batch.size();
        let z = random::normal(&self.noise.next_key(), DType::F32, [count, self.dim_z]);
        let fake = self.generator.forward(z, &classes);
        let loss = cx.minimize("discriminator", |_| {
            let images = Tensor::concatenate(&[&real.to_dtype(fake.dtype()), &fake.detach()], 0);
            let logits =
                self.discriminator.forward(images, Tensor::concatenate(&[&classes, &classes], 0));
            let of_real = logits.narrow(0, 0, count);
            let of_fake = logits.narrow(0, count, count);
            GanLoss::Hinge.discriminator(of_real, of_fake, Reduction::Mean)
        });
        cx.minimize("generator", |_| {
            GanLoss::Hinge.generator(self.discriminator.forward(&fake, &classes), Reduction::Mean)
        });
        loss
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let adam = |lr| optim::Adam::new(lr).betas(0.0, 0.999);
        let optimizers = Optimizers::new().add("discriminator", ["discriminator.*"], adam(4e-4));
        Box::new(optimizers.add("generator", ["generator.*"], adam(1e-4)))
    }
}
