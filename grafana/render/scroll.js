// What @grafana/ui imports by default is, bundled, the module's object.
import Scrollbars from './node_modules/react-custom-scrollbars-2/lib/index.js';

export default Scrollbars.default || Scrollbars;
