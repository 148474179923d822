#include "mcore/write.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "checkpoint/rewrite.h"
#include "config/load.h"
#include "config/model_function.h"
#include "config/validate.h"
#include "files/fault_file_system.h"
#include "files/memory_file_system.h"
#include "mcore/names.h"
#include "mcore/settings.h"
#include "mcore/source.h"
#include "support/error_of.h"

namespace metroplex::mcore::write_test {
namespace {

using checkpoint::Dims;
using checkpoint::TensorSource;
using config::Config;
using files::join_path;

const std::string kVectors = std::string(METROPLEX_SOURCE_DIR) + "/tests/vectors/megatron_checkpoints";
constexpr const char* kCases[] = {"gpt_legacy",        "llama_dist_tp2_pp2", "moe_dist_ep2",    "moe_dist_single",
                                  "latent_legacy_tp2", "trained_dist",       "trained_dist_dp2"};

files::PosixFileSystem disk;

Config read_config(files::FileSystem& from, const std::string& directory) {
  return config::resolved(config::load("", read_settings(read_contents(from, directory), directory)), 1);
}

checkpoint::RunState make_state(const Config& config, int64_t steps) {
  checkpoint::RunState state{7, 28, config::dump(config)};
  state.extra = base::concat("{\"optimizer_steps\": ", steps, ", \"scheduled_samples\": 28}");
  return state;
}

// All tensors, by kind and name.
std::map<std::string, std::string> read_tensors(TensorSource& source) {
  std::map<std::string, std::string> tensors;
  for (const files::TensorForm& form : source.tensors()) {
    std::string& bytes = tensors[form.kind + "/" + form.name];
    bytes = base::concat(files::dtype_name(form.dtype), " ", checkpoint::describe_shape(form.shape), " ");
    checkpoint::read_rows(source, form, 0, checkpoint::row_count(form),
                          [&](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); });
  }
  return tensors;
}

// A model with the tensors of GPTModel; all values are 0.
class ZeroSource final : public TensorSource {
 public:
  explicit ZeroSource(const config::Model& model) : TensorSource("zeros") {
    for (const MappedTensor& tensor : map_tensors(model))
      add({tensor.name, tensor.kind, files::Dtype::kF32, tensor.shape});
  }
  void add_tensor(const std::string& name) { add({name, "weight", files::Dtype::kF32, {1}}); }

 private:
  void read(size_t, const checkpoint::Piece& region, void* data) override {
    std::memset(data, 0, static_cast<size_t>(region.count()) * 4);
  }
};

// Converts a recorded case, and reads it again.
struct RoundTrip {
  explicit RoundTrip(const std::string& name)
      : from(find_directory(disk, join_path(kVectors, name), 0)),
        config(read_config(disk, from)),
        source(disk, from, config.model) {
    notes = write_checkpoint(memory, source, make_state(config, source.contents().optimizer_steps), false, "/out");
    directory = find_directory(memory, "/out", 0);
  }

  files::MemoryFileSystem memory;
  std::string from, directory;
  Config config;
  Source source;
  std::vector<std::string> notes;
};

TEST(WrittenMegatronCheckpoint, HasTheSameTensors) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    RoundTrip trip(name);
    EXPECT_EQ(trip.directory, "/out/iter_0000007");
    Source written(trip.memory, trip.directory, trip.config.model);
    EXPECT_TRUE(read_tensors(written) == read_tensors(trip.source));
    EXPECT_TRUE(trip.notes.empty());
  }
}

TEST(WrittenMegatronCheckpoint, HasTheSameSettings) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    RoundTrip trip(name);
    const Contents contents = read_contents(trip.memory, trip.directory);
    const Config written = read_config(trip.memory, trip.directory);
    EXPECT_TRUE(config::differing_keys(trip.config.model, written.model).empty());
    EXPECT_EQ(written.precision.params_dtype, trip.config.precision.params_dtype);
    EXPECT_EQ(written.train.seq_length, 16);
    EXPECT_EQ(contents.iteration, 7);
    EXPECT_EQ(consumed_samples(contents), 28);
    EXPECT_EQ(contents.optimizer_steps, trip.source.contents().optimizer_steps);
    verify_contents(trip.memory, trip.directory, contents);
  }
}

// Settings that Megatron's flags can express.
TEST(WrittenMegatronCheckpoint, KeepsTheModel) {
  const std::vector<std::vector<std::string>> models = {
      {"model.activation=gelu_tanh"},
      {"model.family=llama", "model.num_query_groups=1", "model.kv_channels=6", "model.rotary_percent=0.5"},
      {"model.family=llama", "model.use_rope_scaling=true", "model.rope_scaling_factor=4"},
      {"model.family=llama", "model.window_size=3", "model.window_attn_skip_freq=2", "model.no_rope_freq=[0,1,0,1]"},
      {"model.activation=squared_relu", "model.position_embedding_type=none", "model.apply_layernorm_1p=true"},
      {"model.activation=quick_gelu", "model.gated_linear_unit=true", "model.glu_linear_offset=1",
       "model.softmax_type=learnable"},
      {"model.family=llama", "model.multi_latent_attention=true", "model.rotary_interleaved=true",
       "model.rotary_scaling_factor=4", "model.mscale_all_dim=1"},
      {"model.family=llama", "model.num_moe_experts=4", "model.moe_layer_freq=2",
       "model.moe_router_topk_scaling_factor=2", "model.moe_router_load_balancing_type=aux_loss,seq_aux_loss",
       "model.moe_aux_loss_coeff=0.1,0.2"},
      {"model.family=llama", "model.num_moe_experts=4", "model.moe_router_score_function=sigmoid",
       "model.moe_router_num_groups=2", "model.moe_router_group_topk=1",
       "model.moe_shared_expert_intermediate_size=8", "model.moe_shared_expert_gate=true"},
      {"model.family=llama", "model.num_moe_experts=4", "model.add_bias_linear=true", "model.moe_latent_size=6"},
      {"model.family=llama", "model.mtp_num_layers=1"},
  };
  for (std::vector<std::string> settings : models) {
    SCOPED_TRACE(settings.back());
    settings.insert(settings.end(), {"model.hidden_size=16", "model.num_layers=4", "model.ffn_hidden_size=24",
                                     "model.vocab_size=40"});
    const Config config = config::resolved(config::load("", settings), 1);
    ZeroSource source(config.model);
    files::MemoryFileSystem memory;
    write_checkpoint(memory, source, make_state(config, 0), false, "/out");
    const std::string directory = find_directory(memory, "/out", 0);
    const auto differences = config::differing_keys(config.model, read_config(memory, directory).model);
    EXPECT_TRUE(differences.empty()) << differences.front().key;
    Source(memory, directory, config.model);
  }
}

TEST(WrittenMegatronCheckpoint, RefusesOtherModels) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.scale_embeddings=true", "model.scale_embeddings = true: Megatron-LM's GPTModel cannot represent"},
      {"model.activation=relu", "model.activation = relu: "},
      {"model.rope_scaling_low_freq_factor=2", "model.rope_scaling_low_freq_factor = 2"},
      {"model.qk_layernorm_after_rope=true", "model.qk_layernorm_after_rope = true"},
      {"peft.lora_rank=4", "peft.lora_rank = 4: Megatron-LM's GPTModel has no adapters"},
  };
  for (const auto& [setting, expected] : cases) {
    const Config config = config::resolved(
        config::load("", {"model.family=llama", "model.use_rope_scaling=true", "model.vocab_size=40", setting}), 1);
    ZeroSource source(config.model);
    files::MemoryFileSystem memory;
    const std::string error =
        test::catch_error([&] { write_checkpoint(memory, source, make_state(config, 0), false, "/out"); });
    EXPECT_NE(error.find(expected), std::string::npos) << error;
    EXPECT_FALSE(memory.exists("/out"));
  }
}

TEST(WrittenMegatronCheckpoint, RefusesOtherTensors) {
  const Config config = config::resolved(config::load("", {"model.vocab_size=40"}), 1);
  ZeroSource source(config.model);
  source.add_tensor("decoder.other");
  files::MemoryFileSystem memory;
  const std::string error =
      test::catch_error([&] { write_checkpoint(memory, source, make_state(config, 0), false, "/out"); });
  EXPECT_NE(error.find("tensor decoder.other: must be one of Megatron-LM's GPTModel"), std::string::npos) << error;
}

TEST(WrittenMegatronCheckpoint, NamesDamagedState) {
  const Config config = config::resolved(config::load("", {"model.vocab_size=40"}), 1);
  for (const char* key : {"optimizer_steps", "scheduled_samples"}) {
    ZeroSource source(config.model);
    checkpoint::RunState state = make_state(config, 3);
    state.extra = base::concat("{\"", key, "\": \"three\"}");
    files::MemoryFileSystem memory;
    const std::string error = test::catch_error([&] { write_checkpoint(memory, source, state, false, "/out"); });
    EXPECT_NE(error.find(base::concat("'zeros', extra.", key, " = \"three\": must be an integer")), std::string::npos)
        << error;
    EXPECT_FALSE(memory.exists("/out"));
  }
}

TEST(WrittenMegatronCheckpoint, LeavesOtherOptimizersOut) {
  const Config config = config::resolved(config::load("", {"model.vocab_size=40", "optim.optimizer=lion"}), 1);
  ZeroSource source(config.model);
  files::MemoryFileSystem memory;
  const auto notes = write_checkpoint(memory, source, make_state(config, 3), false, "/out");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("optim.optimizer = lion: only the state of adam is converted"), std::string::npos);
  EXPECT_EQ(read_contents(memory, find_directory(memory, "/out", 0)).optimizer_steps, 0);
}

// One write, sync or rename fails: each of the first and last ones, and some between them.
TEST(WrittenMegatronCheckpoint, IsWholeOrAbsent) {
  const Config config =
      config::resolved(config::load("", {"model.vocab_size=40", "model.num_layers=1", "model.hidden_size=16"}), 1);
  ZeroSource source(config.model);
  const auto write = [&](files::FileSystem& faulty) {
    write_checkpoint(faulty, source, make_state(config, 0), false, "/out");
  };
  files::MemoryFileSystem whole;
  files::FaultFileSystem counting(whole, {});
  write(counting);
  const int64_t calls = counting.calls();
  for (int64_t distance = 0; distance < calls; distance += 1 + distance / 4) {
    for (const int64_t call : {distance, calls - 1 - distance}) {
      files::MemoryFileSystem memory;
      files::Faults faults;
      faults.fail_at_call = call;
      files::FaultFileSystem faulty(memory, faults);
      const std::string error = test::catch_error([&] { write(faulty); });
      if (!memory.exists("/out")) EXPECT_NE(error, "") << call;
      else Source(memory, find_directory(memory, "/out", 0), config.model);
      EXPECT_FALSE(memory.exists("/out.part")) << call;
    }
  }
}

}  // namespace
}  // namespace metroplex::mcore::write_test
