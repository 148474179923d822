#include "price/machine.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "price/machine_files.h"

namespace metroplex::price {
namespace {

// Limits of a figure, without which the time of a step may be infinite or 0.
struct Range {
  double least, most;
  const char* unit;
  bool zero = false;  // 0 is valid too: the figure is unknown or not modeled
};
constexpr Range kRate{1, 1e30, "per second"}, kOptionalRate{1, 1e30, "per second", true};
constexpr Range kTime{0, 1e6, "seconds"}, kMeasuredTime{1e-12, 1e6, "seconds"};
constexpr Range kCapability{50, 999, "ten times the compute capability, such as 90", true};
constexpr Range kWork{1, 1e30, "FLOPs or bytes"}, kOptionalWork{1, 1e30, "FLOPs or bytes", true};
constexpr Range kShare{1e-6, 1, "fraction of the peak"}, kError{0, 1, "relative error"};
constexpr Range kRanks{1, 1e9, "ranks", true};

std::string join(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

class Reader {
 public:
  Reader(YAML::Node root, std::string origin) : root_(std::move(root)), origin_(std::move(origin)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& rule) const {
    base::throw_error("cost",
                      base::concat(origin_, ": ", key, " = ", value.empty() ? "(nothing)" : value, ": ", rule));
  }
  // The number at `key` of `map`; `otherwise` if the key is absent. Without `otherwise`, the key is required.
  double number(const YAML::Node& map, const std::string& path, const std::string& key, const Range& range,
                std::optional<double> otherwise = std::nullopt) const {
    const YAML::Node node = map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
    if (!node && otherwise) return *otherwise;
    double value = 0;
    if (!node || !node.IsScalar() || !YAML::convert<double>::decode(node, value) || !is_valid(value, range))
      refuse(join(path, key), node ? to_string(node) : "",
             base::concat("must be a finite number between ", range.least, " and ", range.most, " (", range.unit, ")",
                          range.zero ? ", or 0" : "", node ? "; correct it" : "; add it"));
    return value;
  }
  int64_t whole(const YAML::Node& map, const std::string& path, const std::string& key, const Range& range) const {
    const double value = number(map, path, key, range, 0);
    if (value != std::floor(value))
      refuse(join(path, key), base::concat(value), "must be a whole number; correct it");
    return static_cast<int64_t>(value);
  }
  bool boolean(const YAML::Node& map, const std::string& path, const std::string& key, bool otherwise) const {
    const YAML::Node node = map[key];
    bool value = otherwise;
    if (node && !YAML::convert<bool>::decode(node, value))
      refuse(join(path, key), to_string(node), "must be true or false; correct it");
    return value;
  }
  YAML::Node section(const YAML::Node& map, const std::string& key, YAML::NodeType::value type) const {
    const YAML::Node node = map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
    if (!node || node.IsNull()) return YAML::Node(type);
    if (node.Type() != type)
      refuse(key, to_string(node), type == YAML::NodeType::Map ? "must be a map" : "must be a list");
    return node;
  }
  void check_keys(const YAML::Node& map, const std::string& path, const std::vector<std::string>& known) const {
    for (const auto& entry : map) {
      const std::string key = entry.first.as<std::string>();
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(path + key, "(present)", "is not a known key; remove it");
    }
  }
  // yaml-cpp returns the first of several equal keys, and throws for keys that are not scalars.
  void check_tree(const YAML::Node& node, const std::string& path, int depth = 0) const {
    constexpr int kDepth = 8;  // an alias may contain itself
    if (depth > kDepth) refuse(path, "", base::concat("must have at most ", kDepth, " levels; remove it"));
    std::set<std::string> keys;
    for (size_t i = 0; node.IsSequence() && i < node.size(); ++i)
      check_tree(node[i], base::concat(path, "[", i, "]"), depth + 1);
    for (YAML::const_iterator entry = node.begin(); node.IsMap() && entry != node.end(); ++entry) {
      if (!entry->first.IsScalar())
        refuse(path.empty() ? "file" : path, to_string(entry->first), "each key must be a word; remove the key");
      const std::string key = join(path, entry->first.Scalar());
      if (!keys.insert(key).second)
        refuse(key, to_string(entry->second), "must be given once; remove the other entry");
      check_tree(entry->second, key, depth + 1);
    }
  }
  const YAML::Node& root() const { return root_; }
  static std::string to_string(const YAML::Node& node) {
    if (node.IsScalar()) return node.Scalar();
    return node.IsSequence() ? "(a list)" : node.IsMap() ? "(a map)" : "";
  }

 private:
  static bool is_valid(double value, const Range& range) {
    return (value >= range.least && value <= range.most) || (range.zero && value == 0);
  }

  YAML::Node root_;
  std::string origin_;
};

Curve read_curve(const Reader& reader, const YAML::Node& node, const std::string& key, const char* size,
                 const char* value) {
  Curve curve;
  if (!node.IsSequence() || node.size() == 0) reader.refuse(key, "", "must be a list of points");
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string path = base::concat(key, "[", i, "]");
    const CurvePoint read{reader.number(node[i], path, size, kWork), reader.number(node[i], path, value, kShare)};
    if (!curve.empty() && read.size <= curve.back().size)
      reader.refuse(key, base::concat(read.size), "sizes must ascend");
    curve.push_back(read);
  }
  return curve;
}

void read_device(const Reader& reader, Machine& machine) {
  const YAML::Node device = reader.section(reader.root(), "device", YAML::NodeType::Map);
  reader.check_keys(device, "device.",
                    {"gpu", "capability", "peak_flops", "memory_bytes", "memory_bytes_per_s", "cache_bytes",
                     "cache_bytes_per_s", "launch_s"});
  machine.gpu = reader.boolean(device, "device", "gpu", true);
  machine.capability = static_cast<int>(reader.whole(device, "device", "capability", kCapability));
  const YAML::Node peaks = reader.section(device, "peak_flops", YAML::NodeType::Map);
  for (const auto& entry : peaks) {
    const std::string dtype = entry.first.as<std::string>();
    machine.peak_flops[dtype] = reader.number(peaks, "device.peak_flops", dtype, kRate);
  }
  machine.memory_bytes = reader.number(device, "device", "memory_bytes", kOptionalWork, 0);
  machine.memory_bytes_per_s = reader.number(device, "device", "memory_bytes_per_s", kRate);
  machine.cache_bytes = reader.number(device, "device", "cache_bytes", kOptionalWork, 0);
  machine.cache_bytes_per_s = reader.number(device, "device", "cache_bytes_per_s", kOptionalRate, 0);
  machine.launch_s = reader.number(device, "device", "launch_s", kTime, 0);
}

void read_operators(const Reader& reader, Machine& machine) {
  const YAML::Node operators = reader.section(reader.root(), "operators", YAML::NodeType::Map);
  reader.check_keys(operators, "operators.", {"matmul", "grouped_matmul", "attention", "memory"});
  for (const auto& entry : operators) {
    const std::string kind = entry.first.as<std::string>();
    machine.shares[kind] =
        read_curve(reader, entry.second, "operators." + kind, kind == "memory" ? "bytes" : "flops", "share");
  }
  const YAML::Node measured = reader.section(reader.root(), "measured", YAML::NodeType::Map);
  for (const auto& entry : measured) {
    const std::string name = entry.first.as<std::string>();
    const std::string key = "measured." + name;
    if (!entry.second.IsSequence() || entry.second.size() == 0) reader.refuse(key, "", "must be a list of operators");
    for (size_t i = 0; i < entry.second.size(); ++i) {
      const YAML::Node point = entry.second[i];
      const std::string path = base::concat(key, "[", i, "]");
      const MeasuredOperator one{reader.number(point, path, "flops", kOptionalWork, 0),
                                 reader.number(point, path, "bytes", kOptionalWork, 0),
                                 reader.number(point, path, "seconds", kMeasuredTime)};
      if (one.flops + one.bytes <= 0) reader.refuse(path, "0", "must have flops or bytes above 0; add one of them");
      machine.measured[name].push_back(one);
    }
  }
  const YAML::Node issue = reader.section(reader.root(), "issue", YAML::NodeType::Map);
  reader.check_keys(issue, "issue.", {"library_call_s", "own_call_s", "byte_s"});
  machine.library_call_s = reader.number(issue, "issue", "library_call_s", kTime, 0);
  machine.own_call_s = reader.number(issue, "issue", "own_call_s", kTime, 0);
  machine.byte_s = reader.number(issue, "issue", "byte_s", kTime, 0);
}

void read_links(const Reader& reader, Machine& machine) {
  const YAML::Node links = reader.section(reader.root(), "links", YAML::NodeType::Sequence);
  if (links.size() == 0)
    reader.refuse("links", "",
                  "must be a list of links; add {name: link, ranks: 0, latency_s: ..., bytes_per_s: ...}");
  machine.cluster.domains.clear();
  for (size_t i = 0; i < links.size(); ++i) {
    const YAML::Node& link = links[i];
    const std::string key = base::concat("links[", i, "]");
    if (!link.IsMap()) reader.refuse(key, "", "must be a map");
    reader.check_keys(link, key + ".", {"name", "ranks", "latency_s", "step_s", "bytes_per_s", "share", "shared"});
    Domain domain;
    domain.name = link["name"] ? link["name"].as<std::string>("") : "";
    domain.ranks = reader.whole(link, key, "ranks", kRanks);
    domain.link.latency_s = reader.number(link, key, "latency_s", kTime, 0);
    domain.step_s = reader.number(link, key, "step_s", kTime, 0);
    domain.shared = reader.boolean(link, key, "shared", true);
    domain.link.bytes_per_s =
        reader.number(link, key, "bytes_per_s", kRate) * reader.number(link, key, "share", kShare, 1);
    const bool last = i + 1 == links.size();
    if (last != (domain.ranks == 0))
      reader.refuse(key + ".ranks", base::concat(domain.ranks),
                    "must be 0 (all ranks) for the last link, and above 0 for the others; correct it");
    const int64_t inner = i == 0 ? 1 : machine.cluster.domains.back().ranks;
    if (!last && ((i > 0 && domain.ranks <= inner) || domain.ranks % inner != 0))
      reader.refuse(key + ".ranks", base::concat(domain.ranks),
                    base::concat("must be a multiple of the ranks of the link before, and larger; use ", 2 * inner,
                                 " or another multiple of ", inner));
    machine.cluster.domains.push_back(domain);
  }
}

}  // namespace

Machine read_machine(std::string_view yaml, const std::string& origin) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    base::throw_error("cost", base::concat(origin, ": line ", error.mark.line + 1, ": ", error.msg));
  }
  const Reader reader(root, origin);
  if (!root.IsMap())
    reader.refuse("file", Reader::to_string(root),
                  "must be a map with device, operators, and links; use a file that metroplex calibrate wrote");
  reader.check_tree(root, "");
  reader.check_keys(root, "",
                    {"name", "device", "operators", "measured", "issue", "links", "host", "error", "sources"});
  Machine machine;
  machine.origin = origin;
  machine.name = root["name"] && root["name"].IsScalar() ? root["name"].Scalar() : origin;
  read_device(reader, machine);
  read_operators(reader, machine);
  read_links(reader, machine);
  const YAML::Node host = reader.section(root, "host", YAML::NodeType::Map);
  machine.host_bytes_per_s = reader.number(host, "host", "bytes_per_s", kOptionalRate, 0);
  machine.file_bytes_per_s = reader.number(host, "host", "file_bytes_per_s", kOptionalRate, 0);
  machine.error = reader.number(root, "", "error", kError, machine.error);
  const YAML::Node sources = reader.section(root, "sources", YAML::NodeType::Map);
  for (const auto& entry : sources) machine.sources[entry.first.as<std::string>()] = entry.second.as<std::string>("");
  return machine;
}

namespace {

using Figures = std::vector<std::pair<const char*, double>>;

void write_numbers(YAML::Emitter& out, const Figures& figures) {
  out << YAML::BeginMap;
  for (const auto& [key, value] : figures) out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
}

// "section: {name: [{figure: x, ...}, ...]}"
template <class Points, class ToFigures>
void write_lists(YAML::Emitter& out, const char* section, const std::map<std::string, Points>& lists,
                 const ToFigures& to_figures) {
  if (lists.empty()) return;
  out << YAML::Key << section << YAML::Value << YAML::BeginMap;
  for (const auto& [name, points] : lists) {
    out << YAML::Key << name << YAML::Value << YAML::BeginSeq;
    for (const auto& point : points) {
      out << YAML::Flow;
      write_numbers(out, to_figures(name, point));
    }
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
}

}  // namespace

std::string write_machine(const Machine& machine) {
  YAML::Emitter out;
  out.SetDoublePrecision(6);
  out << YAML::BeginMap << YAML::Key << "name" << YAML::Value << machine.name;
  out << YAML::Key << "device" << YAML::Value << YAML::BeginMap;
  out << YAML::Key << "gpu" << YAML::Value << machine.gpu;
  out << YAML::Key << "capability" << YAML::Value << machine.capability;
  out << YAML::Key << "peak_flops" << YAML::Value << YAML::Flow << YAML::BeginMap;
  for (const auto& [dtype, flops] : machine.peak_flops) out << YAML::Key << dtype << YAML::Value << flops;
  out << YAML::EndMap;
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, double>>{{"memory_bytes", machine.memory_bytes},
                                                   {"memory_bytes_per_s", machine.memory_bytes_per_s},
                                                   {"cache_bytes", machine.cache_bytes},
                                                   {"cache_bytes_per_s", machine.cache_bytes_per_s},
                                                   {"launch_s", machine.launch_s}})
    out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
  write_lists(out, "operators", machine.shares, [](const std::string& kind, const CurvePoint& point) {
    return Figures{{kind == "memory" ? "bytes" : "flops", point.size}, {"share", point.value}};
  });
  write_lists(out, "measured", machine.measured, [](const std::string& /*name*/, const MeasuredOperator& one) {
    return Figures{{"flops", one.flops}, {"bytes", one.bytes}, {"seconds", one.seconds}};
  });
  out << YAML::Key << "issue" << YAML::Value;
  write_numbers(
      out,
      {{"library_call_s", machine.library_call_s}, {"own_call_s", machine.own_call_s}, {"byte_s", machine.byte_s}});
  out << YAML::Key << "links" << YAML::Value << YAML::BeginSeq;
  for (const Domain& domain : machine.cluster.domains)
    out << YAML::Flow << YAML::BeginMap << YAML::Key << "name" << YAML::Value << domain.name << YAML::Key << "ranks"
        << YAML::Value << domain.ranks << YAML::Key << "latency_s" << YAML::Value << domain.link.latency_s
        << YAML::Key << "step_s" << YAML::Value << domain.step_s << YAML::Key << "shared" << YAML::Value
        << domain.shared << YAML::Key << "bytes_per_s" << YAML::Value << domain.link.bytes_per_s << YAML::EndMap;
  out << YAML::EndSeq;
  out << YAML::Key << "host" << YAML::Value;
  write_numbers(out, {{"bytes_per_s", machine.host_bytes_per_s}, {"file_bytes_per_s", machine.file_bytes_per_s}});
  out << YAML::Key << "error" << YAML::Value << machine.error;
  out << YAML::Key << "sources" << YAML::Value << YAML::BeginMap;
  for (const auto& [key, source] : machine.sources) out << YAML::Key << key << YAML::Value << source;
  out << YAML::EndMap << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

namespace {

struct KnownMachine {
  const char* name;
  const char* const& yaml;
};
constexpr KnownMachine kKnownMachines[] = {
    {"a100", kA100Yaml}, {"b200", kB200Yaml}, {"cpu", kCpuYaml},      {"gb200_nvl72", kGb200Nvl72Yaml},
    {"h100", kH100Yaml}, {"h200", kH200Yaml}, {"mi300x", kMi300xYaml}};

}  // namespace

std::vector<std::string> known_machines() {
  std::vector<std::string> names;
  for (const KnownMachine& known : kKnownMachines) names.emplace_back(known.name);
  return names;
}

Machine find_machine(const std::string& name_or_path) {
  for (const KnownMachine& known : kKnownMachines) {
    if (known.name == name_or_path) return read_machine(known.yaml, name_or_path);
  }
  std::error_code error;
  MPX_CHECK(!std::filesystem::is_directory(name_or_path, error), "cost", name_or_path,
            ": must be a machine file, and is a directory; use a file that metroplex calibrate wrote");
  std::ifstream in(name_or_path);
  std::ostringstream text;
  text << in.rdbuf();
  std::string known;
  for (const std::string& name : known_machines()) known += (known.empty() ? "" : ", ") + name;
  MPX_CHECK(in, "cost", "no machine '", name_or_path, "': must be a built-in name (", known,
            ") or a readable file, and is neither; use a built-in name or a file that metroplex calibrate wrote");
  return read_machine(text.str(), name_or_path);
}

}  // namespace metroplex::price
