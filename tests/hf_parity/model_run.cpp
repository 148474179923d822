#include "hf_parity/model_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>

#include "apps/run_config.h"
#include "apps/tensor_sources.h"
#include "base/error.h"
#include "checkpoint/exchange.h"
#include "comm/launch.h"
#include "files/file_system.h"
#include "hf/adapters.h"
#include "hf/directory.h"
#include "moe/experts_layer.h"
#include "nn/head_exchange.h"
#include "step/batch.h"
#include "verify/gather.h"
#include "run/generate.h"
#include "run/saving.h"
#include "step/step.h"
#include "upper/saved_run.h"

namespace metroplex::hf_parity {
namespace {

std::vector<std::string> layout_arguments(const Layout& layout) {
  return {base::concat("--tp=", layout.tp),
          base::concat("--pp=", layout.pp),
          base::concat("--ep=", layout.ep),
          base::concat("--cp=", layout.cp),
          base::concat("--nproc=", layout.ranks()),
          base::concat("--parallel.sequence_parallel=", layout.sp ? "true" : "false")};
}

// `base_yaml`: of the loaded checkpoint.
config::Config parse_config(const std::vector<std::string>& from, const Layout& layout,
                            const std::vector<std::string>& more, const std::string& base_yaml = "") {
  std::vector<std::string> arguments = layout_arguments(layout);
  arguments.insert(arguments.end(), {"--data.mock_data=true", "--data.data_path=", "--run.device=cpu",
                                     "--data.tokenizer_type=none", "--data.tokenizer_model="});
  for (const auto* list : {&from, &more}) arguments.insert(arguments.end(), list->begin(), list->end());
  const config::Model model = apps::parse_run_arguments(arguments, {}, base_yaml).config.model;
  if (model.num_layers % layout.pp != 0) {
    const int64_t first = model.num_layers - model.num_layers / layout.pp * (layout.pp - 1);
    arguments.push_back(base::concat("--parallel.decoder_first_pipeline_num_layers=", first));
  }
  // Experts with tensor parallelism are trained with sequence parallelism only; here every expert stays whole.
  if (model.has_experts()) arguments.push_back("--parallel.expert_tensor_parallel_size=1");
  if (model.has_experts() && layout.tp > 1 && !layout.forward_only)
    arguments.push_back("--parallel.sequence_parallel=true");
  return apps::checked_config(apps::parse_run_arguments(arguments, {}, base_yaml).config, layout.ranks(),
                              layout.forward_only ? config::Use::evaluation : config::Use::training);
}

void run_on_ranks(const config::Config& config, const std::function<void(const comm::World&)>& body) {
  const auto ranks = static_cast<int>(config.run.nproc);
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {}, body);
}

// The test inserts this segment after the router of every expert layer.
class RecordRouting final : public nn::Segment {
 public:
  using See = std::function<void(const at::Tensor& experts, const at::Tensor& probs, const nn::Microbatch& batch)>;
  RecordRouting(std::string name, See see) : name_(std::move(name)), see_(std::move(see)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>&) override {}
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    if (!context.batch.training) see_(in.tensor(moe::kTopExperts), in.tensor(moe::kTopProbs), context.batch);
    return in;
  }

 private:
  std::string name_;
  See see_;
};

struct Recorder {
  std::mutex mutex;
  std::map<int64_t, Routing> routing;

  step::StageBuilder builder() {
    return [this](const models::ModelContext& context, const models::StageSpec& slice) {
      nn::Blocks blocks = models::build_stage(context, slice);
      int64_t layer = slice.first_layer;
      for (nn::Block& block : blocks) {
        if (!block.is_layer) continue;
        for (size_t i = 0; i < block.segments.size(); ++i) {
          if (!block.segments[i]->name().ends_with(".router")) continue;
          const auto see = [this, layer](const at::Tensor& experts, const at::Tensor& probs,
                                         const nn::Microbatch& batch) {
            if (!batch.counters.samples.defined()) return;
            const std::lock_guard lock(mutex);
            const int64_t first = batch.counters.step.item<int64_t>() * experts.size(0), k = experts.size(1);
            for (int64_t t = 0; t < experts.size(0); ++t) {
              std::vector<std::pair<int64_t, double>> chosen;
              for (int64_t j = 0; j < k; ++j)
                chosen.emplace_back(experts[t][j].item<int64_t>(), probs[t][j].item<double>());
              std::sort(chosen.begin(), chosen.end());
              Routing& all = routing[layer];
              all.experts[first + t].clear(), all.weights[first + t].clear();
              for (const auto& [expert, weight] : chosen)
                all.experts[first + t].push_back(expert), all.weights[first + t].push_back(weight);
            }
          };
          block.segments.insert(block.segments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                std::make_unique<RecordRouting>(block.name + ".recorded", see));
          break;
        }
        ++layer;
      }
      return blocks;
    };
  }
};

// This rank's sequences, each a microbatch; `step` is the number of the sequence.
std::vector<nn::Microbatch> make_batches(const step::Assembly& assembly, const Tokens& tokens, bool labels,
                                         bool training) {
  std::vector<nn::Microbatch> batches;
  const int64_t dp = assembly.process.groups().dp.size();
  const step::SequenceSharding sharding =
      step::sequence_sharding(assembly.process.config.parallel, assembly.process.groups().cp);
  for (int64_t n = assembly.process.groups().dp.index(); n < static_cast<int64_t>(tokens.size()); n += dp) {
    const std::vector<int64_t>& sequence = tokens[static_cast<size_t>(n)];
    step::HostBatch host;
    host.numbers = {n, 1, n};
    host.vocab_size = assembly.process.vocab_size;
    data::Sample sample;
    for (size_t t = 0; t < sequence.size(); ++t) {
      const bool last = t + 1 == sequence.size();
      sample.tokens.push_back(sequence[t]);
      sample.labels.push_back(last ? 0 : sequence[t + 1]);
      sample.position_ids.push_back(static_cast<int64_t>(t));
      sample.loss_mask.push_back(last ? 0.0F : 1.0F);
    }
    host.samples.push_back(std::move(sample));
    nn::Microbatch batch =
        step::stack_samples(host, assembly.process.dtype == at::kDouble ? at::kDouble : at::kFloat);
    batch = step::shard_sequence(batch, sharding);
    if (!labels) batch.labels = at::Tensor();
    batch.training = training;
    batches.push_back(std::move(batch));
  }
  return batches;
}

// Logits of every sequence, on the first tp and cp rank of the last stage of its data-parallel rank.
void take_logits(step::Assembly& assembly, const Tokens& tokens, std::mutex& mutex, std::vector<at::Tensor>& logits) {
  const std::vector<nn::Microbatch> batches = make_batches(assembly, tokens, false, false);
  auto outputs =
      assembly.model.executor
          ->run({assembly.model.table(assembly.process.config.parallel, static_cast<int>(batches.size()), true),
                 batches,
                 {},
                 step::border_shape(assembly.process, assembly.model, batches[0])})
          .last;
  const comm::Group& cp = assembly.process.groups().cp;
  if (!assembly.process.last_stage() || !assembly.process.groups().tp.first()) return;
  for (size_t i = 0; cp.size() > 1 && i < outputs.size(); ++i)
    outputs[i] = nn::gather_sequence(outputs[i], batches[i], cp);
  if (!cp.first()) return;
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const size_t n = static_cast<size_t>(assembly.process.groups().dp.index()) +
                     i * static_cast<size_t>(assembly.process.groups().dp.size());
    logits[n] = outputs[i].select(1, 0).to(at::kDouble);
  }
}

void insert_fault(step::Assembly& assembly, Fault fault) {
  for (const distributed::Shard& slice : assembly.model.slices) {
    const std::string& name = slice.param->name;
    const bool output = name.starts_with("decoder.layers.0.") &&
                        (name.ends_with(".linear_proj.weight") || name.ends_with(".out_proj.weight"));
    if (fault == Fault::zero_tensor && output) slice.values.zero_();
    if (fault == Fault::scaled_norm && name.starts_with("decoder.layers.1.") && name.ends_with("norm.weight"))
      slice.values.mul_(1.001);
  }
  assembly.model.families.loaded();
}

// Converts our whole tensors to theirs. Frozen parameters have no gradient and are not in `ours`.
std::map<std::string, at::Tensor> read_hf_tensors(const std::string& directory, const config::Model& model,
                                                  const std::map<std::string, at::Tensor>& ours) {
  files::PosixFileSystem disk;
  const std::string type = hf::Json::parse(disk.read(files::join_path(directory, "config.json"))).at("model_type");
  std::map<std::string, at::Tensor> theirs;
  const std::vector<hf::MappedTensor> mapped = hf::find_family(type).tensors(model);
  for (const hf::AdapterModule& module : hf::adapter_modules(model, mapped)) {
    for (const char* which : {config::kLoraA, config::kLoraB, config::kLoraMagnitude}) {
      if (const auto found = ours.find(module.ours + which); found != ours.end())
        theirs[hf::kPeftPrefix + module.theirs + which] = found->second;
    }
  }
  for (const hf::MappedTensor& tensor : mapped) {
    const auto found = ours.find(tensor.name);
    if (tensor.kind != "weight" || found == ours.end()) continue;
    const at::Tensor& x = found->second;
    for (const hf::TensorPart& part : tensor.parts) {
      at::Tensor& whole = theirs[part.name];
      if (!whole.defined()) whole = at::zeros(part.shape, at::kDouble);
      at::Tensor box = x;
      for (size_t d = 0; d < part.size.size(); ++d)
        box = box.narrow(static_cast<int64_t>(d), part.offset[d], part.size[d]);
      whole.as_strided(part.size, part.strides, part.base).copy_(box);
    }
  }
  return theirs;
}

std::vector<std::string> model_arguments(const std::string& directory) {
  return {"--model.from", directory, "--peft.from", find_adapters(directory)};
}

std::vector<std::string> sizes(int64_t sequences, int64_t length) {
  return {"--precision.params_dtype=fp32",
          "--model.hidden_dropout=0",
          "--model.attention_dropout=0",
          "--model.moe_input_jitter_eps=0",
          "--model.moe_aux_loss_coeff=0",
          "--train.micro_batch_size=1",
          base::concat("--train.global_batch_size=", sequences),
          base::concat("--train.seq_length=", length),
          "--train.train_iters=1",
          "--optim.lr=0",
          "--optim.min_lr=0",
          "--optim.clip_grad=0"};
}

}  // namespace

std::string find_adapters(const std::string& directory) {
  files::PosixFileSystem disk;
  const std::string adapters = files::join_path(directory, "adapter");
  return disk.exists(adapters) ? adapters : "";
}

config::Config make_config(const std::string& directory, const Layout& layout, int64_t sequences, int64_t length) {
  return parse_config(model_arguments(directory), layout, sizes(sequences, length));
}

ModelRun run_model(const std::string& directory, const Layout& layout, const Tokens& tokens,
                   const std::vector<int64_t>& prompt, int64_t new_tokens, Fault fault) {
  const config::Config config =
      make_config(directory, layout, static_cast<int64_t>(tokens.size()), static_cast<int64_t>(tokens[0].size()));
  ModelRun run;
  run.logits.resize(tokens.size());
  std::mutex mutex;
  Recorder recorder;
  run_on_ranks(config, [&](const comm::World& world) {
    files::PosixFileSystem disk;
    const auto assembly = step::assemble(config, world, config.model.vocab_size, false, recorder.builder());
    run::load_from_directory(*assembly, disk);
    insert_fault(*assembly, fault);
    take_logits(*assembly, tokens, mutex, run.logits);
    const double loss = step::evaluate_step(*assembly, make_batches(*assembly, tokens, true, false)).mean();
    std::map<std::string, at::Tensor> gradients;
    const std::vector<nn::Microbatch> batches = make_batches(*assembly, tokens, true, true);
    step::StepInput step{
        batches, 1, 0, false, [&](double unscale) {
          for (const auto& [name, values] : verify::gather_whole(
                   assembly->process, assembly->model, assembly->optimization, verify::GatherKind::main_grad))
            gradients[name] = values.to(at::kDouble).mul(unscale);
        }};
    step::train_step(*assembly, step);
    if (world.rank() != 0) return;
    run.loss = loss;
    run.gradients = read_hf_tensors(directory, config.model, gradients);
  });
  if (layout.tp == 1 && layout.cp == 1) run.routing = recorder.routing;
  Layout plain = layout;
  plain.sp = false;
  // One sequence at a time, on one data-parallel rank: experts stay together.
  plain.ep = plain.cp = 1;
  plain.forward_only = true;
  const config::Config generating = make_config(directory, plain, 1, static_cast<int64_t>(tokens[0].size()));
  run_on_ranks(generating, [&](const comm::World& world) {
    files::PosixFileSystem disk;
    const auto assembly = step::assemble(generating, world, generating.model.vocab_size, true, models::build_stage,
                                         nullptr, step::InitialValues::loaded);
    run::load_from_directory(*assembly, disk);
    insert_fault(*assembly, fault);
    const auto made =
        run::generate(assembly->process, assembly->model, prompt, {.max_new_tokens = new_tokens, .temperature = 0});
    if (world.rank() == 0) run.generated = made;
  });
  return run;
}

std::vector<at::Tensor> compute_logits(const std::string& path, const Layout& layout, const Tokens& tokens,
                                       Fault fault) {
  files::PosixFileSystem disk;
  const bool theirs = apps::is_model_directory(disk, path);
  apps::SavedRun saved;
  if (!theirs) saved = apps::open_saved_run(path, 0);
  Layout forward = layout;
  forward.ep = 1, forward.forward_only = true;
  config::Config config = parse_config(
      theirs ? std::vector<std::string>{"--model.from", path}
             : std::vector<std::string>{"--model.from=", "--checkpoint.load=" + saved.directory,
                                        "--checkpoint.save=", "--optim.override_opt_param_scheduler=true"},
      forward, sizes(static_cast<int64_t>(tokens.size()), static_cast<int64_t>(tokens[0].size())), saved.config_yaml);
  std::vector<at::Tensor> logits(tokens.size());
  std::mutex mutex;
  run_on_ranks(config, [&](const comm::World& world) {
    files::PosixFileSystem rank_disk;
    const auto assembly = step::assemble(config, world, config.model.vocab_size, true, models::build_stage, nullptr,
                                         step::InitialValues::loaded);
    if (theirs) run::load_from_directory(*assembly, rank_disk);
    else run::load_state(*assembly, saved.directory, rank_disk);
    insert_fault(*assembly, fault);
    take_logits(*assembly, tokens, mutex, logits);
  });
  return logits;
}

void write_again(const std::string& directory, const Layout& layout, const std::string& checkpoint,
                 const std::string& out) {
  const config::Config config = parse_config(
      model_arguments(directory), layout,
      {"--train.micro_batch_size=1", base::concat("--train.global_batch_size=", layout.ranks()),
       "--train.train_iters=1", "--optim.lr=0", "--checkpoint.save=" + checkpoint, "--checkpoint.save_interval=1"});
  run_on_ranks(config, [&](const comm::World& world) {
    files::PosixFileSystem disk;
    const auto assembly = step::assemble(config, world, config.model.vocab_size);
    run::load_from_directory(*assembly, disk);
    const run::SaveOutcome saved = run::save_state(*assembly, {}, disk);
    MPX_CHECK(saved.saved, "hf parity", saved.problem);
  });
  files::PosixFileSystem disk;
  checkpoint::Alone alone;
  const checkpoint::Found found = checkpoint::open_path(disk, checkpoint, 0, alone);
  hf::write_directory(disk, *found.reader, out);
  if (!find_adapters(directory).empty()) hf::write_adapters(disk, *found.reader, out + "_adapters", directory);
}

}  // namespace metroplex::hf_parity
