// Reads a configuration from YAML and overrides, and writes it back.
#include "config/load.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "config/batch_schedule.h"
#include "config/derived.h"
#include "config/experts.h"
#include "config/fields.h"
#include "config/support.h"

namespace metroplex::config::load_test {

TEST(Retired, KeysThatNothingReadArePassedOverAtRestAndRefusedOtherwise) {
  EXPECT_NO_THROW(
      parse("model: {num_tokentypes: 0, moe_static_buffer_exchange: equal_capacity}\n"
            "parallel: {variable_seq_lengths: false}\n"));
  EXPECT_THROW(parse("model: {moe_static_buffer_exchange: nvshmem}\n"), base::Error);
  EXPECT_THROW(parse("model: {num_tokentypes: 2}\n"), base::Error);
  EXPECT_THROW(parse("parallel: {variable_seq_lengths: true}\n"), base::Error);
  EXPECT_THROW(parse("", {"model.num_tokentypes=0"}), base::Error);
}

TEST(Load, TakesAFileThenOverrides) {
  const Config config = parse("model:\n  num_layers: 6\n  rotary_base: 5e5\ntrain: {seq_length: 64}\n",
                              {"--model.num_layers=7", "data.data_path=0.7,wiki,0.3,code"});
  EXPECT_EQ(config.model.num_layers, 7);
  EXPECT_EQ(config.model.rotary_base, 500000.0);
  EXPECT_EQ(config.train.seq_length, 64);
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"0.7", "wiki", "0.3", "code"}));
  EXPECT_EQ(config.model.hidden_size, Config{}.model.hidden_size);
}

TEST(Load, ListsAreYamlOrCommas) {
  EXPECT_EQ(parse("data:\n  data_path: [0.5, a b, 0.5, 'c,d']\n").data.data_path,
            (std::vector<std::string>{"0.5", "a b", "0.5", "c,d"}));
  EXPECT_EQ(parse("", {"data.data_path=[x, \"y,z\"]"}).data.data_path, (std::vector<std::string>{"x", "y,z"}));
  EXPECT_TRUE(parse("data:\n  data_path: [x]\n", {"data.data_path="}).data.data_path.empty());
}

TEST(Load, EmptySectionsAndFilesAreDefaults) {
  EXPECT_TRUE(differences(parse(""), Config{}).empty());
  EXPECT_TRUE(differences(parse("# nothing\nmodel:\nrun: {}\n"), Config{}).empty());
}

struct BadText {
  const char* yaml;
  std::vector<std::string> words;
};

TEST(Load, RefusesWhatItCannotReadAndSaysWhere) {
  const std::vector<BadText> cases = {
      {"model:\n  num_layer: 4\n", {"line 2", "model.num_layer", "did you mean 'model.num_layers'"}},
      {"model:\n  seq_length: 4\n", {"model.seq_length", "did you mean 'train.seq_length'"}},
      {"modle:\n  num_layers: 4\n", {"unknown section 'modle'", "did you mean 'model'"}},
      {"model:\n  zzzzzzzzqqqq: 4\n", {"model.zzzzzzzzqqqq", "--help all"}},
      {"model:\n  num_layers: four\n", {"model.num_layers = four", "expected an integer"}},
      {"model:\n  num_layers: 4.5\n", {"model.num_layers = 4.5", "expected an integer"}},
      {"model:\n  num_layers: \"4\"\n", {"model.num_layers = \"4\"", "expected an integer"}},
      {"model:\n  num_layers: 99999999999999999999\n", {"model.num_layers", "expected an integer"}},
      {"model:\n  num_layers: [4]\n", {"model.num_layers = a list", "expected an integer"}},
      {"model:\n  num_layers:\n", {"model.num_layers = nothing", "expected an integer"}},
      {"model:\n  rotary_base: .nan\n", {"model.rotary_base", "expected a number"}},
      {"model:\n  rotary_base: inf\n", {"model.rotary_base", "expected a number"}},
      {"model:\n  qk_layernorm: yes\n", {"model.qk_layernorm = yes", "true or false"}},
      {"model:\n  family: {a: b}\n", {"model.family = a map", "one of gpt, codegeex, llama"}},
      {"data:\n  data_path: prefix\n", {"data.data_path = prefix", "a list"}},
      {"data:\n  data_path: [[a]]\n", {"data.data_path", "a list of plain values"}},
      {"model: 3\n", {"section 'model' must hold keys"}},
      {"- model\n", {"expected sections"}},
      {"model:\n  num_layers: 4\n  num_layers: 5\n", {"line 3", "model.num_layers", "written twice"}},
      {"model:\n  num_layers: 4\nmodel:\n  hidden_size: 5\n", {"line 3", "section 'model'", "written twice"}},
      {"model:\n  num_layers: [4\n", {"not YAML"}},
      {"\tmodel: 3\n", {"not YAML"}},
      {"model: {num_layers: 3}\n---\nmodel: {num_layers: 4}\n", {"more than one document"}},
      {", model: {num_layers: 3}\n", {"more than one document", "no comma in front"}},
      {"? [a, b]\n: 3\n", {"a section's name must be a word"}},
  };
  for (const auto& [yaml, words] : cases) {
    const std::string error = catch_error([&yaml = yaml] { parse(yaml); });
    ASSERT_NE(error, "") << yaml;
    for (const auto& word : words) EXPECT_NE(error.find(word), std::string::npos) << yaml << "\n" << error;
  }
}

TEST(Load, TellsEveryMistakeOfAFileAtOnce) {
  const std::string error = catch_error([] { parse("model:\n  num_layer: 4\n  hidden_size: wide\nruns: {}\n"); });
  for (const char* word : {"model.num_layer'", "model.hidden_size = wide", "'runs'"}) {
    EXPECT_NE(error.find(word), std::string::npos) << error;
  }
}

TEST(Load, RefusesBadOverrides) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--model.num_layer=4", "did you mean 'model.num_layers'"},
      {"--num_layers=4", "did you mean 'model.num_layers'"},
      {"--model.num_layers", "has no '='"},
      {"--model.num_layers=", "model.num_layers = nothing: expected an integer"},
      {"--optim.lr=fast", "optim.lr = fast: expected a number"},
      {"--train.progress=1", "train.progress = 1: expected true or false"},
      {"--data.data_path=[a", "data.data_path = [a: expected a list"},
      {"--modle.num_layers=3", "did you mean 'model.num_layers'"},
  };
  for (const auto& [text, word] : cases) {
    const std::string error = catch_error([&, text = text] { load("", {text}); });
    EXPECT_NE(error.find(word), std::string::npos) << text << "\n" << error;
  }
  const std::string both = catch_error([] { load("", {"--a.b=1", "--optim.lr=x"}); });
  EXPECT_NE(both.find("'a.b'"), std::string::npos) << both;
  EXPECT_NE(both.find("optim.lr = x"), std::string::npos) << both;
}

TEST(Load, ARefusedTextChangesNothing) {
  Draft draft;
  EXPECT_THROW(draft.merge_yaml("model: {num_layers: 9, hidden_size: x}", "t"), base::Error);
  EXPECT_THROW(draft.assign(std::vector<std::string>{"model.num_layers=9", "model.hidden_size=x"}), base::Error);
  EXPECT_TRUE(differences(draft.finish(), Config{}).empty());
  EXPECT_TRUE(draft.given().empty());
}

TEST(Load, NamesAFileItCannotRead) {
  EXPECT_NE(catch_error([] { load("/no/such/run.yaml"); }).find("/no/such/run.yaml"), std::string::npos);
  const auto folder = std::filesystem::temp_directory_path();
  EXPECT_NE(catch_error([&] { load(folder.string()); }).find("is a folder"), std::string::npos);
}

TEST(Load, RefusesAFileThatIsTooLargeOrNestsTooDeep) {
  EXPECT_NE(catch_error([] { parse(std::string(2 << 20, '#')); }).find("limit"), std::string::npos);
  EXPECT_NE(catch_error([] { parse("model: " + std::string(100000, '[')); }), "");
  EXPECT_NE(catch_error([] { parse("data: {data_path: " + std::string(100000, '{')); }), "");
}

TEST(Load, AFileOfThousandsOfUnknownKeysIsRefusedQuickly) {
  std::string yaml = "model:\n";
  for (int i = 0; i < 50000; ++i) yaml += "  num_layerz" + std::to_string(i) + ": 1\n";
  const std::string error = catch_error([&] { parse(yaml); });
  EXPECT_NE(error.find("num_layerz0"), std::string::npos);
  EXPECT_LT(error.size(), 5000u);
}

TEST(Load, MutatedFilesAreRefusedOrReadButNeverCrash) {
  const std::string text = dump(good());
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string broken = text;
    for (int i = 0; i < 4; ++i) broken[random() % broken.size()] = static_cast<char>(random());
    if (round % 3 == 0) broken.resize(random() % broken.size());
    refused += catch_error([&] { parse(broken); }).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
}

TEST(Dump, LoadsBackToItselfWithEveryDoubleBitForBit) {
  Config config = good();
  config.optim.lr = 0.1 + 0.2;
  config.optim.adam_eps = 4.9406564584124654e-324;
  config.model.rotary_base = 1.7976931348623157e308;
  config.optim.min_lr = std::nextafter(1e-5, 1);
  config.run.name = "a \"quoted\"\n\tname: # with \\ and \x01 and Übermaß";
  config.run.name = "true";
  config.data.data_path = {"0.3", "a, b", "null", ""};
  config.train.metrics_file = "~";
  const Config back = parse(dump(config));
  EXPECT_EQ(differences(config, back), std::vector<std::string>{});
  EXPECT_EQ(back.optim.lr, config.optim.lr);
  EXPECT_EQ(back.run.name, config.run.name);
  EXPECT_EQ(back.data.data_path, config.data.data_path);
  EXPECT_EQ(dump(back), dump(config));
}

TEST(Dump, InfinityComesBackWhereItIsAValueAndNowhereElse) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Config config;
  EXPECT_EQ(config.precision.grad_norm_skip_threshold, kInfinity);
  EXPECT_NE(dump(config).find("grad_norm_skip_threshold: .inf\n"), std::string::npos);
  EXPECT_TRUE(differences(parse(dump(config)), config).empty());
  EXPECT_EQ(parse("precision: {grad_norm_skip_threshold: 2}", {}).precision.grad_norm_skip_threshold, 2.0);
  for (const char* spelling : {"inf", ".inf"}) {
    const std::string text = std::string("precision.grad_norm_skip_threshold=") + spelling;
    EXPECT_EQ(load("", {"precision.grad_norm_skip_threshold=2", text}).precision.grad_norm_skip_threshold, kInfinity);
  }
  for (const char* wrong : {"precision.grad_norm_skip_threshold=-inf", "precision.grad_norm_skip_threshold=nan",
                            "optim.lr=inf", "optim.lr=.inf", "precision.initial_loss_scale=inf"}) {
    EXPECT_NE(catch_error([&] { load("", {wrong}); }).find("expected a number"), std::string::npos) << wrong;
  }
  EXPECT_NE(help("precision.grad_norm_skip_threshold").find("=inf\n"), std::string::npos);
  EXPECT_NE(help("precision.grad_norm_skip_threshold").find("above 0, or inf"), std::string::npos);
}

// For every section, a value set as text is read, dumped, loaded again and named among the differences.
TEST(Dump, AnyKeyOfAnySectionComesBackChanged) {
  Config other;
  std::vector<std::string> changed;
  for (const Field& field : fields(other)) {
    if (auto* const* flag = std::get_if<bool*>(&field.member)) **flag = !**flag;
    if (auto* const* count = std::get_if<int64_t*>(&field.member)) **count += 3;
    if (auto* const* number = std::get_if<double*>(&field.member)) **number = 0.3;
    if (auto* const* text = std::get_if<std::string*>(&field.member)) **text += "x";
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&field.member)) **list = {"a b=1", "c, d"};
    if (std::holds_alternative<ChoiceMember>(field.member)) {
      EXPECT_TRUE(assign_scalar(field, field.limits.choices.back()));
    }
    changed.push_back(field.key());
  }
  EXPECT_EQ(differences(other, Config{}), changed);
  EXPECT_EQ(differences(parse(dump(other)), other), std::vector<std::string>{});
}

TEST(Dump, RandomDoublesComeBackBitForBit) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 300; ++i) {
    Config config;
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    config.optim.lr = value;
    const Config back = parse(dump(config));
    EXPECT_EQ(std::memcmp(&back.optim.lr, &value, sizeof value), 0) << value;
  }
}

TEST(Dump, WritesEveryKeyAndTheLoadedFormKeepsPresetsOut) {
  const Config config = load("", {"model.family=llama", "model.normalization=LayerNorm"});
  const std::string text = dump(config);
  for (const auto& key : all_keys()) {
    EXPECT_NE(text.find("  " + key.substr(key.find('.') + 1) + ":"), std::string::npos) << key;
  }
  EXPECT_TRUE(differences(parse(text), config).empty());
}

TEST(Family, PresetsOnlyWhatWasNotGiven) {
  const Config llama = parse("model:\n  family: llama\n");
  EXPECT_EQ(llama.model.normalization, Normalization::RMSNorm);
  EXPECT_EQ(llama.model.position_embedding_type, PositionEmbedding::rope);
  EXPECT_EQ(llama.model.activation, Activation::silu);
  EXPECT_TRUE(llama.model.gated_linear_unit);
  EXPECT_FALSE(llama.model.add_bias_linear);
  EXPECT_TRUE(llama.model.untie_embeddings_and_output_weights);
  const Config mine = parse("model:\n  family: llama\n  add_bias_linear: true\n", {"model.normalization=LayerNorm"});
  EXPECT_TRUE(mine.model.add_bias_linear);
  EXPECT_EQ(mine.model.normalization, Normalization::LayerNorm);
  EXPECT_EQ(mine.model.activation, Activation::silu);
  EXPECT_TRUE(differences(parse("model:\n  family: gpt\n"), Config{}).empty());
}

// 0 is an explicit rate, not "min_lr".
TEST(Draft, DecoupledRateFallsToMinLr) {
  const std::string rates = "optim:\n  min_lr: 1e-4\n  decoupled_lr: 2e-3\n";
  EXPECT_EQ(parse(rates).optim.decoupled_min_lr, 1e-4);
  EXPECT_EQ(parse(rates, {"optim.min_lr=1e-5"}).optim.decoupled_min_lr, 1e-5);
  EXPECT_EQ(parse(rates + "  decoupled_min_lr: 0\n").optim.decoupled_min_lr, 0.0);
  EXPECT_EQ(parse(rates, {"optim.decoupled_min_lr=1e-6"}).optim.decoupled_min_lr, 1e-6);
  EXPECT_EQ(parse("optim:\n  min_lr: 1e-4\n").optim.decoupled_min_lr, 0.0);
  EXPECT_EQ(parse(dump(parse(rates))).optim.decoupled_min_lr, 1e-4);
}

TEST(Fields, EveryKeyIsUniqueHelpfulAndInsideItsOwnLimitsByDefault) {
  Config config;
  std::set<std::string> keys;
  for (const Field& field : fields(config)) {
    EXPECT_TRUE(keys.insert(field.key()).second) << field.key();
    EXPECT_GE(field.help.size(), 10u) << field.key();
    EXPECT_EQ(broken_limit(field), "") << field.key();
  }
  EXPECT_GT(keys.size(), 150u);
}

// A saved configuration is JSON, which allows only UTF-8.
TEST(Fields, OfTextAreUtf8) {
  const auto rule = [](const std::string& text) {
    Config config;
    config.checkpoint.save = text;
    for (const Field& field : fields(config)) {
      if (field.key() == "checkpoint.save") return broken_limit(field);
    }
    return std::string("no such key");
  };
  for (const char* text : {"", "plain",
                           "gr\xc3\xb6\xc3\x9f"
                           "e",
                           "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(rule(text), "") << text;
  for (const char* text :
       {"d\xff", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"})
    EXPECT_EQ(rule(text), "must be UTF-8") << text;
  Config config;
  config.data.data_path = {"good", "d\xff"};
  const std::vector<Violation> found = violations(config, 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].key, "data.data_path");
  EXPECT_EQ(found[0].rule, "must be UTF-8");
}

// A member without a description would neither load nor print. Fields hold pointers into the object, so together they
// must cover all of it except padding.
TEST(Fields, ReachEveryByteOfEverySectionButPadding) {
  Config config;
  std::map<std::string, size_t> bytes, choices;
  for (const Field& field : fields(config)) {
    bytes[field.section] += std::visit(
        [](auto member) {
          if constexpr (std::is_pointer_v<decltype(member)>) return sizeof *member;
          else return sizeof(Choice<Backend>);
        },
        field.member);
    choices[field.section] += std::holds_alternative<ChoiceMember>(field.member) ? 1 : 0;
  }
  const std::map<std::string, size_t> sizes = {{"run", sizeof(config::Run)},
                                               {"model", sizeof(Model)},
                                               {"parallel", sizeof(Parallel)},
                                               {"optim", sizeof(Optim)},
                                               {"data", sizeof(Data)},
                                               {"train", sizeof(Train)},
                                               {"checkpoint", sizeof(Checkpoint)},
                                               {"precision", sizeof(Precision)},
                                               {"memory", sizeof(Memory)},
                                               {"peft", sizeof(Peft)}};
  ASSERT_EQ(bytes.size(), sizes.size());
  for (const auto& [section, size] : sizes) {
    EXPECT_LE(bytes[section], size) << section;
    // at most 7 bytes after each of at most 13 runs of bools, 4 after a choice
    EXPECT_GE(bytes[section] + 91 + 4 * choices[section], size) << section;
  }
}

TEST(SavedConfig, OfAnotherVersionIsReadAsFarAsItIsKnown) {
  Config config = good({"model.rotary_base=500.5", "checkpoint.allow=model.rotary_base,model.activation"});
  EXPECT_EQ(dump(parse_saved(dump(config))), dump(config));
  const Config read = parse_saved(
      "model: {rotary_base: 500.5, long_gone: 3, num_layers: [1]}\nnever_heard_of: {a: 1}\nrun: 7\ndata:\n");
  EXPECT_EQ(read.model.rotary_base, 500.5);
  EXPECT_EQ(read.model.num_layers, Model{}.num_layers);
  EXPECT_EQ(dump(parse_saved("")), dump(Config{}));
  EXPECT_NE(catch_error([] { parse_saved("model: ["); }).find("not YAML"), std::string::npos);
}

TEST(CheckpointAllow, TakesKeysThatAreComparedAndNoOthers) {
  EXPECT_TRUE(violations(good({"checkpoint.allow=model.rotary_base,data.tokenizer_model"}), kWorld).empty());
}

TEST(Help, ComesFromTheFieldsAndSuggestsTheNearestTopic) {
  const std::string all = help("all");
  for (const auto& key : all_keys()) EXPECT_NE(all.find("--" + key + "="), std::string::npos) << key;
  EXPECT_NE(help("optim").find("--optim.lr=0.0003"), std::string::npos);
  EXPECT_EQ(help("optim").find("--model."), std::string::npos);
  EXPECT_NE(help("model.activation").find("gelu_tanh"), std::string::npos);
  EXPECT_NE(catch_error([] { help("optin"); }).find("did you mean 'optim'"), std::string::npos);
  size_t line = 0;
  for (const char c : all) {
    line = c == '\n' ? 0 : line + 1;
    ASSERT_LE(line, 130u);
  }
}

TEST(PaddedVocabSize, IsTheNextMultipleOfDivisorTimesTensorRanks) {
  EXPECT_EQ(padded_vocab_size(50257, 128, 1), 50304);
  EXPECT_EQ(padded_vocab_size(50257, 128, 8), 51200);
  EXPECT_EQ(padded_vocab_size(50304, 128, 1), 50304);
  EXPECT_EQ(padded_vocab_size(1, 1, 1), 1);
  EXPECT_THROW(padded_vocab_size(0, 128, 1), base::Error);
  EXPECT_THROW(padded_vocab_size(INT64_MAX, 128, 1), base::Error);
  EXPECT_THROW(padded_vocab_size(5, INT64_MAX, 2), base::Error);
}

TEST(Numbers, MayHaveDigitGroups) {
  const Config config = load("", {"train.train_samples=300_000_000", "optim.adam_eps=1_0.2_5e-1_0", "optim.lr=1e-3",
                                  "parallel.hierarchical_context_parallel_sizes=4,1_6", "model.window_size=1_024"});
  EXPECT_EQ(config.train.train_samples, 300000000);
  EXPECT_EQ(config.optim.adam_eps, 10.25e-10);
  EXPECT_EQ(config.model.window_size, 1024);
  EXPECT_EQ(context_levels(config.parallel), (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(parse("train: {train_samples: 12_000}").train.train_samples, 12000);
  std::string problem;
  EXPECT_EQ(read_batch_rampup("1_6 16 300_000", 32, problem)->samples, 300000);
  EXPECT_EQ(read_coefficients("1_0.5,0", problem)->front(), 10.5);
  for (const char* wrong : {"_1", "1_", "1__0", "1_000_", "_"})
    EXPECT_THROW(load("", {std::string("train.train_samples=") + wrong}), base::Error) << wrong;
}

TEST(Draft, RetractRestoresTheDefault) {
  Draft draft;
  draft.assign(std::vector<std::string>{"model.family=llama", "model.activation=gelu", "checkpoint.save_interval=5",
                                        "train.freeze=a,b"});
  for (const char* key : {"model.activation", "checkpoint.save_interval", "train.freeze"}) draft.retract(key);
  const Config config = draft.finish();
  EXPECT_EQ(config.model.activation, Activation::silu) << "the preset of the family";
  EXPECT_EQ(config.checkpoint.save_interval, 0);
  EXPECT_TRUE(config.train.freeze.empty());
  EXPECT_EQ(draft.given(), (std::set<std::string>{"model.family"}));
}

TEST(WithoutEffect, OnlyWhatChangesNothing) {
  const auto keys = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> found;
    for (const Violation& violation : without_effect(good(overrides))) found.push_back(violation.key);
    return found;
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(keys({}), Keys{});
  EXPECT_EQ(keys({"checkpoint.save_interval=5", "model.kv_lora_rank=64", "memory.recompute_num_layers=1"}),
            (Keys{"model.kv_lora_rank", "memory.recompute_num_layers", "checkpoint.save_interval"}));
  EXPECT_EQ(keys({"model.moe_aux_loss_coeff=0.01", "optim.lr_wsd_decay_iters=5", "checkpoint.finetune=true"}),
            (Keys{"model.moe_aux_loss_coeff", "optim.lr_wsd_decay_iters", "checkpoint.finetune"}));
  EXPECT_EQ(keys({"optim.lr_wsd_decay_samples=5"}), Keys{"optim.lr_wsd_decay_samples"});
  const std::string experts = "model.num_moe_experts=4", balancing = "model.moe_router_load_balancing_type=";
  EXPECT_EQ(keys({experts, balancing + "none", "model.moe_aux_loss_coeff=0.01"}), Keys{"model.moe_aux_loss_coeff"});
  // Megatron rejects these.
  EXPECT_EQ(keys({experts, balancing + "sinkhorn", "model.moe_aux_loss_coeff=0.01"}), Keys{});
  EXPECT_EQ(keys({"memory.recompute_granularity=selective", "memory.recompute_num_layers=1"}), Keys{});
  EXPECT_EQ(keys({"memory.recompute_granularity=selective", "memory.recompute_method=uniform"}), Keys{});
  EXPECT_EQ(keys({"model.moe_ffn_hidden_size=64"}), Keys{});
  EXPECT_EQ(keys({"parallel.expert_model_parallel_size=2"}), Keys{});
}

}  // namespace metroplex::config::load_test
