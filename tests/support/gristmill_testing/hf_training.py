"""A real `transformers.Trainer` on a real tiny model, which notes the rows that it is trained on."""

import transformers

from gristmill.stream.trainers.transformers import StreamTrainer


class StopAfter(transformers.TrainerCallback):
    """Ends a training at a step, as an interruption would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **rest):
        """Stop, if it is time."""
        control.should_training_stop = state.global_step >= self.step


def make_llama(vocab_size=500, **options):
    """A Llama with random weights and as few of them as possible."""
    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlamaConfig(
        vocab_size=vocab_size, pad_token_id=0, bos_token_id=None, eos_token_id=None, **{**sizes, **options}
    )
    return transformers.LlamaForCausalLM(config)


def train_on_stream(folder, stream, *, batch_size, resume=None, stop_after=None, accumulate=1, saves=0, **options):
    """Train, with a checkpoint every `saves` steps; return the rows that the model saw, in order, and the trainer."""
    model, rows = make_llama(), []

    def record(module, args, kwargs):
        is_real = (kwargs["labels"] != -100).any(dim=1)
        rows.extend(kwargs["input_ids"][is_real].tolist())

    model.register_forward_pre_hook(record, with_kwargs=True)
    if saves:
        options |= {"save_steps": saves}
    elif "save_strategy" not in options:
        options |= {"save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    callbacks = [] if stop_after is None else [StopAfter(stop_after)]
    trainer = StreamTrainer(model, arguments, stream=stream, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return rows, trainer
