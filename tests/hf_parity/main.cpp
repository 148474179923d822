// metroplex_hf_parity DIR...: directories written by transformers, each with an expected.json of its model's results
// for some tokens. Reads each into our model, on the requested layout, and compares logits, loss, the gradient of
// every parameter, the experts of every token, a greedy continuation. Saves it as a checkpoint on that layout, writes
// that as a directory, and compares the bytes of every tensor. Exit 0 only within the tolerances. Or
// metroplex_hf_parity DIR --tokens FILE --logits OUT: the logits of a directory or of our checkpoint for the tokens.
// With --recorded FILE in place of --logits, compares them with the tensor "logits" of FILE; directories may be
// checkpoints of Megatron-LM.
#include <CLI/CLI.hpp>

#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/file_system.h"
#include "files/safetensors.h"
#include "config/model.h"
#include "hf/directory.h"
#include "hf/family.h"
#include "hf_parity/model_run.h"
#include "hf_parity/sha256.h"
#include "support/folder.h"

namespace metroplex::hf_parity {
namespace {

using Json = nlohmann::json;

// The expected values were computed in float32 from the stored values, as ours are, in another order of sums.
// `rounding` is their distance from float64; ours is about as far, so both together may differ by twice that. Ranks
// and fused products may change the order of sums, which adds as much again. If a case states none or less, the
// float32 rounding counts. It is a unit of 2^-24 in each of the 4 products of a layer, forward and backward, and in
// the sum over the tokens. The sums of the products have up to `width` terms and are added in a tree; all errors have
// random sign.
constexpr double kErrorFactor = 4;

double relative_rounding(const config::Model& model, int64_t tokens) {
  const auto width = static_cast<double>(std::max({model.hidden_size, model.ffn_hidden_size, model.vocab_size}));
  return 0x1p-24 *
         std::sqrt(8 * static_cast<double>(model.num_layers) * std::log2(width) + static_cast<double>(tokens));
}

struct LargestError {
  double ratio = 0;
  std::string where;
  int64_t compared = 0;
  void see(double got, double want, double allowed, const std::string& place) {
    ++compared;
    const double now = got == want ? 0 : std::abs(got - want) / allowed;
    if (!(now <= ratio)) ratio = std::isnan(now) ? INFINITY : now, where = place;
  }
};

class Report {
 public:
  void line(const char* what, const LargestError& worst) {
    const bool good = worst.ratio <= 1 && worst.compared > 0;
    std::printf("  %-10s %6lld values, worst %.3f of what is allowed%s%s%s\n", what,
                static_cast<long long>(worst.compared), worst.ratio, worst.where.empty() ? "" : ", ",
                worst.where.c_str(), good ? "" : "   FAILED");
    passed_ = passed_ && good;
  }
  void exact(const char* what, int64_t equal, int64_t all, const std::string& first) {
    std::printf("  %-10s %lld of %lld equal%s%s\n", what, static_cast<long long>(equal), static_cast<long long>(all),
                equal == all ? "" : "   FAILED, first: ", equal == all ? "" : first.c_str());
    passed_ = passed_ && equal == all && all > 0;
  }
  bool passed() const { return passed_; }

 private:
  bool passed_ = true;
};

LargestError compare_logits(const ModelRun& run, const Json& expected, double allowed) {
  LargestError worst;
  const Json& logits = expected.at("logits");
  for (size_t n = 0; n < run.logits.size(); ++n) {
    const at::Tensor& x = run.logits[n];
    const at::Tensor sums = x.logsumexp(1), best = x.argmax(1);
    for (int64_t t = 0; t < x.size(0); ++t) {
      const auto place = base::concat("sequence ", n, " position ", t);
      const auto at = static_cast<size_t>(t);
      worst.see(sums[t].item<double>(), logits.at("logsumexp")[n][at], allowed, place);
      worst.see(best[t].item<double>(), logits.at("argmax")[n][at], 0.5, place + " argmax");
      const std::vector<double> first = logits.at("first16")[n][at], last = logits.at("last16")[n][at];
      for (size_t i = 0; i < first.size(); ++i)
        worst.see(x[t][static_cast<int64_t>(i)].item<double>(), first[i], allowed, place);
      for (size_t i = 0; i < last.size(); ++i)
        worst.see(x[t][x.size(1) - static_cast<int64_t>(last.size() - i)].item<double>(), last[i], allowed, place);
    }
  }
  for (const Json& row : logits.at("rows")) {
    const at::Tensor x = run.logits.at(row.at("sequence").get<size_t>())[row.at("position").get<int64_t>()];
    const std::vector<double> values = row.at("values");
    for (size_t i = 0; i < values.size(); ++i)
      worst.see(x[static_cast<int64_t>(i)].item<double>(), values[i], allowed, "a whole row");
  }
  return worst;
}

// For a tensor: an error of `relative` of its norm, in one element or, summed, of random sign in all.
LargestError compare_gradients(const ModelRun& run, const Json& expected, double relative) {
  LargestError worst;
  for (const auto& [name, want] : expected.at("gradients").items()) {
    const auto found = run.gradients.find(name);
    if (found == run.gradients.end()) {
      worst.see(NAN, 0, 1, name + " is missing");
      continue;
    }
    const at::Tensor x = found->second.reshape({-1});
    const double norm = want.at("l2"), allowed = relative * norm;
    worst.see(x.norm().item<double>(), norm, allowed, name + " l2");
    worst.see(x.sum().item<double>(), want.at("sum"), allowed * std::sqrt(static_cast<double>(x.numel())),
              name + " sum");
    const std::vector<double> first = want.at("first"), last = want.at("last");
    for (size_t i = 0; i < first.size(); ++i)
      worst.see(x[static_cast<int64_t>(i)].item<double>(), first[i], allowed, name);
    for (size_t i = 0; i < last.size(); ++i)
      worst.see(x[x.numel() - static_cast<int64_t>(last.size() - i)].item<double>(), last[i], allowed, name);
  }
  for (const auto& [name, values] : run.gradients) {
    if (!expected.at("gradients").contains(name)) worst.see(NAN, 0, 1, name + " is not expected");
  }
  return worst;
}

LargestError compare_routing(const ModelRun& run, const Json& expected, double allowed) {
  LargestError worst;
  for (const auto& [layer, want] : expected.at("routing").items()) {
    const auto found = run.routing.find(std::stoll(layer));
    if (found == run.routing.end()) {
      worst.see(NAN, 0, 1, "layer " + layer + " has no experts here");
      continue;
    }
    for (size_t t = 0; t < want.at("experts").size(); ++t) {
      const std::vector<int64_t> experts = want.at("experts")[t];
      const std::vector<double> weights = want.at("weights")[t];
      const auto token = static_cast<int64_t>(t);
      const std::string place = base::concat("layer ", layer, " token ", t);
      const bool same = found->second.experts.count(token) > 0 && found->second.experts.at(token) == experts;
      worst.see(same ? 0 : NAN, 0, 1, place);
      for (size_t j = 0; same && j < weights.size(); ++j)
        worst.see(found->second.weights.at(token)[j], weights[j], allowed, place);
    }
  }
  return worst;
}

// The names of the tensors that the family computes from config.json, and writes.
std::set<std::string> constant_names(const std::string& directory) {
  files::PosixFileSystem disk;
  const hf::Json json = hf::Json::parse(disk.read(files::join_path(directory, "config.json")));
  const auto find = hf::find_family(json.at("model_type")).constants;
  std::set<std::string> names;
  if (find == nullptr) return names;
  for (const hf::Constant& constant : find(make_config(directory, {}, 1, 1).model)) names.insert(constant.name);
  return names;
}

// torch rounds some values of exp to the second nearest float32. The constants are at most 1: the two nearest are at
// most 2^-24 apart.
LargestError compare_constants(const std::string& directory, const std::string& written,
                               const std::set<std::string>& names) {
  files::PosixFileSystem disk;
  const std::string one = files::join_path(directory, "model.safetensors"),
                    two = files::join_path(written, "model.safetensors");
  const files::SafetensorsFile want(disk.map(one), one), got(disk.map(two), two);
  LargestError worst;
  for (const std::string& name : names) {
    const files::TensorInfo *const expected = want.find(name), *const info = got.find(name);
    const bool same = expected != nullptr && info != nullptr && info->shape == expected->shape &&
                      info->dtype == files::Dtype::kF32 && expected->dtype == info->dtype;
    if (!same) worst.see(NAN, 0, 1, name + " has another form");
    for (uint64_t i = 0; same && i < (info->end - info->begin) / 4; ++i)
      worst.see(files::element_as_double(info->dtype, got.data(*info), i),
                files::element_as_double(expected->dtype, want.data(*expected), i), 0x1p-24, name);
  }
  return worst;
}

// `sums`: SHA-256 of each tensor. `others`: tensors that are not compared.
void compare_bytes(const char* what, const std::string& written, const Json& sums, Report& report,
                   const std::set<std::string>& others = {}) {
  files::PosixFileSystem disk;
  std::map<std::string, std::string> got;
  for (const std::string& name : disk.list(written)) {
    if (!name.ends_with(".safetensors")) continue;
    const std::string path = files::join_path(written, name);
    const files::SafetensorsFile file(disk.map(path), path);
    for (const files::TensorInfo& info : file.tensors())
      if (!others.contains(info.name))
        got[info.name] = sha256({reinterpret_cast<const char*>(file.data(info)), info.end - info.begin});
  }
  int64_t equal = 0, all = 0;
  std::string first;
  for (const auto& [name, sum] : sums.items()) {
    if (others.contains(name)) continue;
    ++all;
    const bool same = got.count(name) > 0 && got.at(name) == sum.get<std::string>();
    equal += same ? 1 : 0;
    if (!same && first.empty()) first = name;
  }
  report.exact(what, equal, all, first);
  report.exact("no other", all, static_cast<int64_t>(got.size()), "");
}

// Weights with adapters were merged in float64, as ours are, and each element is rounded to float32 once.
LargestError compare_merged(const std::string& written, const Json& expected) {
  LargestError worst;
  const std::string path = files::join_path(written, "model.safetensors");
  files::PosixFileSystem disk;
  const files::SafetensorsFile file(disk.map(path), path);
  for (const auto& [name, want] : expected.at("merged").items()) {
    const files::TensorInfo* const info = file.find(name);
    MPX_CHECK(info != nullptr, "files", "'", path, "' has no ", name);
    const int64_t count = static_cast<int64_t>(info->end - info->begin) / 4;
    const at::Tensor x = at::empty({count}, at::kDouble);
    for (int64_t i = 0; i < count; ++i)
      x.mutable_data_ptr<double>()[i] =
          files::element_as_double(info->dtype, file.data(*info), static_cast<uint64_t>(i));
    const double norm = want.at("l2"), unit = 0x1p-24;
    worst.see(x.norm().item<double>(), norm, unit * norm, name + " l2");
    worst.see(x.sum().item<double>(), want.at("sum"), unit * norm * std::sqrt(static_cast<double>(count)),
              name + " sum");
    const std::vector<double> first = want.at("first"), last = want.at("last");
    for (size_t i = 0; i < first.size(); ++i)
      worst.see(x[static_cast<int64_t>(i)].item<double>(), first[i], 2 * unit * std::abs(first[i]), name);
    for (size_t i = 0; i < last.size(); ++i)
      worst.see(x[count - static_cast<int64_t>(last.size() - i)].item<double>(), last[i],
                2 * unit * std::abs(last[i]), name);
  }
  return worst;
}

// The mean over all tokens but the first of each sequence.
double mean_loss(const std::vector<at::Tensor>& logits, const Tokens& tokens) {
  double sum = 0;
  int64_t count = 0;
  for (size_t n = 0; n < tokens.size(); ++n) {
    const at::Tensor log_probs = logits[n].log_softmax(1);
    for (size_t next = 1; next < tokens[n].size(); ++next, ++count)
      sum -= log_probs[static_cast<int64_t>(next) - 1][tokens[n][next]].item<double>();
  }
  return sum / static_cast<double>(count);
}

// Writes a quantized directory without quantization, in both dtypes.
void compare_dequantized(const std::string& directory, const Json& expected, Report& report) {
  files::PosixFileSystem disk;
  const config::Model model = make_config(directory, {}, 1, 1).model;
  const test::Folder scratch;
  const auto write = [&](const char* name, const hf::ExportOptions& options) {
    hf::Source source(disk, directory, model);
    hf::write_weights_directory(disk, source, model, {}, scratch.at(name), options);
    return scratch.at(name);
  };
  compare_bytes("float32", write("float32", {.dtype = files::Dtype::kF32}),
                expected.at("quantized").at("dequantized_float32_sha256"), report);
  compare_bytes("direct", write("direct", {}), expected.at("tensor_sha256"), report);
}

bool check(const std::string& directory, const Layout& layout, Fault fault) {
  files::PosixFileSystem disk;
  const Json expected = Json::parse(disk.read(files::join_path(directory, "expected.json")));
  const Tokens tokens = expected.at("input_ids");
  const Json& generation = expected.at("generation");
  const auto new_tokens = generation.at("new_tokens").get<std::vector<int64_t>>();
  const ModelRun run =
      run_model(directory, layout, tokens, generation.at("prompt"), static_cast<int64_t>(new_tokens.size()), fault);
  const Json rounding = expected.value("rounding", Json::object());
  double largest = 0;
  for (const at::Tensor& x : run.logits) largest = std::max(largest, x.abs().max().item<double>());
  const double unit = relative_rounding(
      make_config(directory, layout, static_cast<int64_t>(tokens.size()), static_cast<int64_t>(tokens[0].size()))
          .model,
      static_cast<int64_t>(tokens.size() * tokens[0].size()));
  const double logits = kErrorFactor * std::max(rounding.value("logits_max_abs", 0.0), unit * largest);
  std::printf("%s: tp %ld pp %ld ep %ld cp %ld%s\n", directory.c_str(), static_cast<long>(layout.tp),
              static_cast<long>(layout.pp), static_cast<long>(layout.ep), static_cast<long>(layout.cp),
              layout.sp ? " sp" : "");
  Report report;
  report.line("logits", compare_logits(run, expected, logits));
  LargestError loss;
  const double wanted = expected.at("loss");
  loss.see(run.loss, wanted, kErrorFactor * std::max(rounding.value("loss", 0.0), unit * wanted), "loss");
  report.line("loss", loss);
  report.line("gradients",
              compare_gradients(run, expected,
                                kErrorFactor * std::max(rounding.value("gradients_max_relative_l2", 0.0), unit)));
  if (expected.contains("routing") && !expected.at("routing").empty()) {
    if (layout.tp == 1 && layout.cp == 1) report.line("routing", compare_routing(run, expected, logits));
    else std::printf("  routing    not compared with tp or cp above 1\n");
  }
  int64_t equal = 0;
  for (size_t i = 0; i < new_tokens.size() && i < run.generated.size() && run.generated[i] == new_tokens[i]; ++i)
    ++equal;
  report.exact("greedy", equal, static_cast<int64_t>(new_tokens.size()), base::concat("token ", equal));
  const test::Folder scratch;
  write_again(directory, layout, scratch.at("run"), scratch.at("again"));
  if (find_adapters(directory).empty()) {
    const std::set<std::string> constants = constant_names(directory);
    compare_bytes("bytes", scratch.at("again"), expected.at("tensor_sha256"), report, constants);
    if (!constants.empty()) report.line("constants", compare_constants(directory, scratch.at("again"), constants));
  } else {
    compare_bytes("adapters", scratch.at("again_adapters"), expected.at("adapter_tensor_sha256"), report);
    report.line("merged", compare_merged(scratch.at("again"), expected));
    LargestError base;
    const double wanted_base = expected.at("loss_without_adapter");
    base.see(mean_loss(compute_logits(directory, layout, tokens, fault), tokens), wanted_base,
             kErrorFactor * std::max(rounding.value("loss", 0.0), unit * wanted_base), "loss");
    report.line("base", base);
  }
  if (expected.contains("quantized")) compare_dequantized(directory, expected, report);
  std::printf("%s %s\n", report.passed() ? "PASS" : "FAIL", directory.c_str());
  return report.passed();
}

// `tokens`: a JSON list of sequences of one length. The tensor "logits" of the file is [sequence, s, V], F32.
void write_logits(const std::string& path, const Layout& layout, const std::string& tokens, const std::string& out) {
  files::PosixFileSystem disk;
  const Tokens sequences = Json::parse(disk.read(tokens));
  const at::Tensor all = at::stack(compute_logits(path, layout, sequences)).to(at::kFloat).contiguous();
  std::vector<files::TensorInfo> infos{
      {"logits", files::Dtype::kF32, {all.sizes().begin(), all.sizes().end()}, 0, 0}};
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, out, infos, {});
  writer.write(all.const_data_ptr(), static_cast<size_t>(all.nbytes()));
  writer.finish();
}

// `recorded`: a tensor "logits" [sequence, s, V] that another program computed in fp32.
bool compare_recorded(const std::string& path, const Layout& layout, const std::string& tokens,
                      const std::string& recorded, Fault fault) {
  files::PosixFileSystem disk;
  const Tokens sequences = Json::parse(disk.read(tokens));
  const at::Tensor all = at::stack(compute_logits(path, layout, sequences, fault)).to(at::kFloat).contiguous();
  const files::SafetensorsFile file(disk.map(recorded), recorded);
  const files::TensorInfo* const info = file.find("logits");
  MPX_CHECK(info != nullptr && info->shape == std::vector<uint64_t>(all.sizes().begin(), all.sizes().end()), "files",
            "'", recorded, "' has no tensor logits of shape ", all.sizes());
  const auto count = static_cast<int64_t>(sequences.size()), length = static_cast<int64_t>(sequences[0].size());
  const config::Model model = make_config(path, layout, count, length).model;
  const double allowed = kErrorFactor * relative_rounding(model, count * length) * all.abs().max().item<double>();
  LargestError worst;
  for (int64_t i = 0; i < all.numel(); ++i) {
    const double want = files::element_as_double(info->dtype, file.data(*info), static_cast<uint64_t>(i));
    worst.see(all.const_data_ptr<float>()[i], want, allowed, base::concat("element ", i));
  }
  std::printf("%s\n", path.c_str());
  Report report;
  report.line("logits", worst);
  return report.passed();
}

int run(int argc, char** argv) {
  CLI::App app("Compares Hugging Face directories with what transformers made of them.", "metroplex_hf_parity");
  std::vector<std::string> directories;
  Layout layout;
  std::string plant = "none", tokens, logits, recorded;
  app.add_option("DIR", directories, "directories with an expected.json")->required();
  app.add_option("--tp", layout.tp, "tensor parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--pp", layout.pp, "pipeline ranks")->check(CLI::PositiveNumber);
  app.add_option("--ep", layout.ep, "expert parallel ranks, which are data parallel ones too")
      ->check(CLI::PositiveNumber);
  app.add_option("--cp", layout.cp, "context parallel ranks")->check(CLI::PositiveNumber);
  app.add_flag("--sp", layout.sp, "sequence parallelism");
  app.add_option("--plant", plant, "a mistake to make on purpose, which must not pass: zero_tensor, scaled_norm")
      ->check(CLI::IsMember({"none", "zero_tensor", "scaled_norm"}));
  auto* const given =
      app.add_option("--tokens", tokens, "compare nothing: of these tokens, a JSON list of sequences,");
  app.add_option("--logits", logits, "write the logits of DIR, which may be a checkpoint, to this safetensors file")
      ->needs(given);
  app.add_option("--recorded", recorded, "compare the logits of DIR with those of this safetensors file")
      ->needs(given);
  CLI11_PARSE(app, argc, argv);
  if (!logits.empty()) {
    for (const std::string& directory : directories) write_logits(directory, layout, tokens, logits);
    return 0;
  }
  const Fault fault = plant == "zero_tensor"   ? Fault::zero_tensor
                      : plant == "scaled_norm" ? Fault::scaled_norm
                                               : Fault::none;
  int failed = 0;
  for (const std::string& directory : directories) {
    try {
      const bool equal = recorded.empty() ? check(directory, layout, fault)
                                          : compare_recorded(directory, layout, tokens, recorded, fault);
      failed += equal ? 0 : 1;
    } catch (const base::Error& error) {
      std::printf("FAIL %s: %s\n", directory.c_str(), error.what());
      ++failed;
    }
  }
  std::printf("%zu directories, %d failed\n", directories.size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace metroplex::hf_parity

int main(int argc, char** argv) { return metroplex::hf_parity::run(argc, argv); }
