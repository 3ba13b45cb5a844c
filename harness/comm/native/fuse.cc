// Sums of one step that do not wait for each other are made in one exchange: a pass over every graph before it runs,
// of what is fetched only, so that no sum is made for another one's sake.

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"

namespace harness {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

constexpr char kSum[] = "HarnessAllreduce";
constexpr int64_t kMost = 16 << 20;  // bytes of one exchange, as harness.comm.grouped_sums has them

std::atomic<uint64_t> fused_sums{0};  // a session keeps operations by their names: no two are called the same

template <typename T>
T Attribute(const Node* node, const char* name) {
  T value{};
  TF_CHECK_OK(tensorflow::GetNodeAttr(node->attrs(), name, &value));
  return value;
}

// What sums must have in common. `scope` is where they were built: the body of a function, a branch, a loop. A function
// that is called several times is several times in the graph: its nodes then have the caller's name in front of theirs.
using Kind = std::tuple<std::string, std::string, std::string, int, int64_t, int64_t, std::string>;

Kind KindOf(const Node* sum) {
  const auto place = Attribute<std::string>(sum, "place");
  std::string caller = sum->name();
  if (absl::EndsWith(caller, place)) caller.resize(caller.size() - place.size());
  return {Attribute<std::string>(sum, "scope"),  caller, sum->assigned_device_name(),
          Attribute<tensorflow::DataType>(sum, "T"), Attribute<int64_t>(sum, "group"), Attribute<int64_t>(sum, "scale"),
          Attribute<std::string>(sum, "label")};
}

int64_t Order(const Node* sum) { return Attribute<int64_t>(sum, "order"); }

// Whether `sum` waits for some of `members` by more than the order in which exchanges are built.
bool WaitsFor(const Node* sum, const std::vector<Node*>& members) {
  const std::unordered_set<const Node*> earlier(members.begin(), members.end());
  std::unordered_set<const Node*> seen{sum};
  std::deque<const Node*> next{sum};
  while (!next.empty()) {
    const Node* node = next.front();
    next.pop_front();
    for (const Edge* edge : node->in_edges()) {
      const Node* source = edge->src();
      if (source->IsNextIteration()) continue;  // of the loop's last round
      if (earlier.count(source) > 0 && node == sum && edge->IsControlEdge()) continue;
      if (earlier.count(source) > 0) return true;
      if (seen.insert(source).second) next.push_back(source);
    }
  }
  return false;
}

// Replaces `members` by one sum.
absl::Status Fuse(Graph* graph, const std::vector<Node*>& members) {
  const std::unordered_set<const Node*> inside(members.begin(), members.end());
  std::vector<NodeBuilder::NodeOut> values;
  std::vector<std::string> names;
  NodeBuilder::NodeOut sequence;
  for (const Node* member : members) {
    const int count = Attribute<int64_t>(member, "N");
    for (int i = 0; i < count; ++i) {
      const Edge* edge;
      TF_RETURN_IF_ERROR(member->input_edge(i, &edge));
      values.emplace_back(edge->src(), edge->src_output());
    }
    const Edge* edge;
    TF_RETURN_IF_ERROR(member->input_edge(count, &edge));
    sequence = NodeBuilder::NodeOut(edge->src(), edge->src_output());
    for (const auto& name : Attribute<std::vector<std::string>>(member, "names")) names.push_back(name);
  }
  const Node* first = members.front();
  NodeBuilder builder(absl::StrCat(first->name(), "_and_", members.size() - 1, "_more_", fused_sums++), kSum);
  builder.Input(values).Input(sequence).Device(first->requested_device());
  for (const char* name : {"group", "scale", "label", "last", "scope", "order", "bytes"}) {
    builder.Attr(name, *first->attrs().Find(name));
  }
  Node* fused = nullptr;
  TF_RETURN_IF_ERROR(builder.Attr("names", names).AssignedDevice(first->assigned_device_name()).Finalize(graph, &fused));
  int begin = 0;
  for (Node* member : members) {
    for (const Edge* edge : member->in_edges()) {
      if (edge->IsControlEdge() && inside.count(edge->src()) == 0) graph->AddControlEdge(edge->src(), fused);
    }
    const std::vector<const Edge*> out(member->out_edges().begin(), member->out_edges().end());
    for (const Edge* edge : out) {
      if (inside.count(edge->dst()) > 0) continue;
      if (edge->IsControlEdge()) {
        graph->AddControlEdge(fused, edge->dst());
        continue;
      }
      Node* reader = edge->dst();
      const int input = edge->dst_input(), output = begin + edge->src_output();
      graph->RemoveEdge(edge);
      graph->AddEdge(fused, output, reader, input);
    }
    begin += member->num_outputs();
  }
  for (Node* member : members) graph->RemoveNode(member);
  return absl::OkStatus();
}

class FuseSums : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || options.graph->get() == nullptr) return absl::OkStatus();
    Graph* graph = options.graph->get();
    std::map<Kind, std::vector<Node*>> kinds;
    for (Node* node : graph->op_nodes()) {
      if (node->type_string() == kSum && Attribute<int64_t>(node, "bytes") >= 0) kinds[KindOf(node)].push_back(node);
    }
    std::vector<std::vector<Node*>> alike;
    for (auto& [kind, sums] : kinds) {
      std::stable_sort(sums.begin(), sums.end(), [](Node* a, Node* b) { return Order(a) < Order(b); });
      alike.push_back(sums);
    }
    // In the order in which they were built, which is the same on all ranks.
    std::stable_sort(alike.begin(), alike.end(), [](const auto& a, const auto& b) { return Order(a[0]) < Order(b[0]); });
    for (const auto& sums : alike) TF_RETURN_IF_ERROR(FuseAlike(graph, sums));
    return absl::OkStatus();
  }

 private:
  static absl::Status FuseAlike(Graph* graph, const std::vector<Node*>& sums) {
    std::vector<Node*> members;
    int64_t bytes = 0;
    for (Node* sum : sums) {
      const int64_t more = Attribute<int64_t>(sum, "bytes");
      if (!members.empty() && (bytes + more > kMost || WaitsFor(sum, members))) {
        if (members.size() > 1) TF_RETURN_IF_ERROR(Fuse(graph, members));
        members.clear();
        bytes = 0;
      }
      members.push_back(sum);
      bytes += more;
    }
    return members.size() > 1 ? Fuse(graph, members) : absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1, FuseSums);

}  // namespace
}  // namespace harness
