// The part of NIXL's backend interface that a plugin needs: types, members and virtual functions in the order in which libnixl's binary
// has them. Written for this plugin from what the interface says (NIXL 1.4 and 1.5; src/api/cpp/backend/backend_engine.h and the headers
// that it includes). A change of the virtual functions is noticed when an engine is made: see `devmem_nixl_check_abi`.
#ifndef DEVMEM_NIXL_ABI_H
#define DEVMEM_NIXL_ABI_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum class nixl_thread_sync_t { NONE, STRICT, RW };
enum class nixl_cost_t { ANALYTICAL_BACKEND };

enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_SUPPORTED = -9,
};

using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using nixlMemViewH = void *;

// A range of memory of a device.
struct nixlBasicDesc {
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

// A range with what another agent must know of it.
struct nixlBlobDesc : nixlBasicDesc {
    std::string metaInfo;
};

// What a backend keeps of a region.
class nixlBackendMD {
protected:
    bool isPrivateMD;

public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private) {}
    virtual ~nixlBackendMD() = default;
};

// A range of a region.
struct nixlMetaDesc : nixlBasicDesc {
    nixlBackendMD *metadataP;
};

struct nixlRemoteMetaDesc;

// A list of ranges, made by libnixl and only read here. Its virtual functions are never called, so one stands for all of them.
template <class T> class nixlDescList {
    nixl_mem_t type_;
    std::vector<T> descs_;

public:
    virtual ~nixlDescList() = default;
    nixl_mem_t getType() const { return type_; }
    const std::vector<T> &all() const { return descs_; }
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif = false;
    std::string customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

// Arguments of a user, which reach a backend only by pointer.
struct nixlAgentOptionalArgs;
using nixl_opt_args_t = nixlAgentOptionalArgs;

// What a transfer is to a backend.
class nixlBackendReqH {
public:
    virtual ~nixlBackendReqH() = default;
};

struct nixlBackendInitParams {
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay;
    nixl_thread_sync_t syncMode;
    bool enableTelemetry_;
};

// The class of an engine. libnixl reads its members by their place.
class nixlBackendEngine {
    std::string backendType_;
    nixl_b_params_t customParams_;
    // Of events with a time, a type and a number; this plugin adds none, so their size does not matter.
    std::vector<std::byte> telemetryEvents_;
    std::mutex telemetryEventsMutex_;

protected:
    bool initErr = false;
    const std::string localAgent;
    const bool enableTelemetry;

public:
    explicit nixlBackendEngine(const nixlBackendInitParams &params)
        : backendType_(params.type), customParams_(*params.customParams), localAgent(params.localAgent),
          enableTelemetry(params.enableTelemetry_) {}
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    nixlBackendEngine &operator=(const nixlBackendEngine &) = delete;

    // Slots 0 and 1: the destructor, without and with freeing.
    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
    virtual nixl_status_t connect(const std::string &) = 0;
    virtual nixl_status_t disconnect(const std::string &) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                   nixlBackendReqH *&, const nixl_opt_b_args_t *) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                   nixlBackendReqH *&, const nixl_opt_b_args_t *) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;
    virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &, const nixl_opt_b_args_t *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixl_opt_b_args_t *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(nixlMemViewH) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const = 0;
    virtual nixl_status_t getConnInfo(std::string &) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const std::string &, nixlBackendMD *&) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &) = 0;
    virtual nixl_status_t genNotif(const std::string &, const std::string &) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const { return NIXL_ERR_NOT_SUPPORTED; }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                           const std::string &, nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, nixl_cost_t &, const nixl_opt_args_t *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
};

// Virtual functions above, and the two words in front of them: the size of the symbol _ZTV17nixlBackendEngine.
constexpr size_t nixl_vtable_slots = 27;
constexpr size_t nixl_vtable_bytes = (nixl_vtable_slots + 2) * sizeof(void *);

// The record of a plugin.
struct nixlBackendPlugin {
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

#endif
