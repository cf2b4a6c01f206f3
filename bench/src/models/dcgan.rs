//! DCGAN at 32 × 32 with its paper's losses: a step of the discriminator and one of the generator.

use fulmen::models::dcgan::{Config, Discriminator, Generator};
use fulmen::nn::RandomStream;
use fulmen::nn::loss::GanLoss;
use fulmen::prelude::*;
use fulmen::tensor::random;

/// Trains on images `x`.
#[derive(Module)]
pub(crate) struct Dcgan {
    generator: Generator,
    discriminator: Discriminator,
    noise: RandomStream,
    nz: usize,
}

impl Dcgan {
    pub(crate) fn new() -> Dcgan {
        let config = Config { image_size: 32, ..Config::default() };
        let networks = (Generator::new(&config), Discriminator::new(&config));
        let (Ok(generator), Ok(discriminator)) = networks else {
            unreachable!("32 is a power of 2")
        };
        Dcgan { generator, discriminator, noise: RandomStream::new(), nz: config.nz }
    }
}

impl TrainingModule for Dcgan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let real = batch.get("x");
        let z = random::normal(&self.noise.next_key(), DType::F32, [batch.size(), self.nz]);
        let fake = self.generator.forward(z);
        let loss = cx.minimize("discriminator", |_| {
            let [real, fake] =
                [&real, &fake.detach()].map(|images| self.discriminator.forward(images));
            GanLoss::NonSaturating.discriminator(real, fake, Reduction::Mean)
        });
        cx.log("train_loss", &loss);
        cx.minimize("generator", |_| {
            GanLoss::NonSaturating.generator(self.discriminator.forward(&fake), Reduction::Mean)
        });
        loss
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let adam = || optim::Adam::new(2e-4).betas(0.5, 0.999);
        let optimizers = Optimizers::new().add("discriminator", ["discriminator.*"], adam());
        Box::new(optimizers.add("generator", ["generator.*"], adam()))
    }
}
